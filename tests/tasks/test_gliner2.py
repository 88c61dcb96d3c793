"""Checkpoints of gliner2: against its definitions written out in torch."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import safetensors.torch
import torch

import qdqbert
from conftest import WORDS
from gliner2_models import MARKS, MAX_WIDTH, Reference, chosen, save_gliner2

TEXTS = (
    "The house of the cat is in london, and the dog came home last night.",
    "new york-city is 3.5 great; books and music",
    "a",
)
LABELS = ("city", "the name of a person", "animal")


def threshold_of(spans: list[Any]) -> float:
    """Return a threshold that a third of all spans exceeds, none of them by little."""
    scores = sorted((each[3] for each in spans), reverse=True)
    places = range(len(scores) // 3, min(len(scores) // 3 + 9, len(scores) - 1))
    best = max(places, key=lambda index: scores[index] - scores[index + 1])
    return (scores[best] + scores[best + 1]) / 2


def in_order(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((each["start"], each["end"], each["label"], each["score"]) for each in found)


def same(found: list[dict[str, Any]], wanted: list[Any]) -> bool:
    """Return whether entities are equal, and their scores within 1e-4."""
    own = in_order(found)
    return [each[:3] for each in own] == [each[:3] for each in wanted] and all(
        abs(one[3] - other[3]) < 1e-4 for one, other in zip(own, wanted, strict=True)
    )


def check(folder: Path) -> None:
    reference = Reference(folder)
    with qdqbert.load(folder, precision="float") as model:
        for text in TEXTS:
            spans = reference.spans(text, LABELS)
            threshold = threshold_of(spans)
            found = model(text, LABELS, threshold=threshold)
            assert found
            assert same(found, chosen(spans, threshold))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_gliner2(tmp_path_factory.mktemp("gliner2") / "model")


@pytest.fixture(scope="module")
def model(folder):
    with qdqbert.load(folder, precision="float") as found:
        yield found


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "bert"])
@pytest.mark.parametrize("layer", ["count_lstm", "count_lstm_v2", "count_lstm_moe"])
@pytest.mark.usual("count_lstm_v2-deberta-v2", "count_lstm_moe-deberta-v2")
def test_each_counting_layer_and_encoder_is_gliner2s(family, layer, tmp_path) -> None:
    check(save_gliner2(tmp_path / "model", family, counting_layer=layer))


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.usual("mean")
def test_states_of_a_words_tokens_are_pooled_as_in_gliner2(pooling, tmp_path) -> None:
    check(save_gliner2(tmp_path / "model", token_pooling=pooling))


def test_descriptions_are_read_next_to_labels(folder, model) -> None:
    said = {"city": "a town, or a village", "animal": "a cat"}
    spans = Reference(folder).spans(TEXTS[0], said)
    threshold = threshold_of(spans)
    found = model(TEXTS[0], said, threshold=threshold)
    assert same(found, chosen(spans, threshold))
    assert in_order(found) != in_order(model(TEXTS[0], list(said), threshold=threshold))
    # Labels may have the same description.
    assert model(TEXTS[0], dict.fromkeys(said, "a town"), threshold=0.3)


def test_kinds_of_entities_do_not_exclude_each_other_unless_a_call_says_so(model) -> None:
    both = model(TEXTS[0], LABELS[:2], threshold=0.3)
    alone = [model(TEXTS[0], each, threshold=0.3) for each in LABELS[:2]]
    assert {each["label"] for each in both} == {*LABELS[:2]}
    assert both == model(TEXTS[0], LABELS[:2], threshold=0.3, multi_label=True)
    assert len(both) > max(map(len, alone))
    single = model(TEXTS[0], LABELS[:2], threshold=0.3, multi_label=False)
    ends = [0, *(each["end"] for each in single)]
    assert all(end <= each["start"] for end, each in zip(ends, single, strict=False))
    nested = model(TEXTS[0], LABELS[:2], threshold=0.3, flat_ner=False)
    assert len(nested) > len(both)


def test_a_text_has_no_entities_if_their_number_is_none(tmp_path) -> None:
    folder = save_gliner2(tmp_path / "model", none=9.0)
    assert Reference(folder).spans(TEXTS[0], LABELS) == []
    with qdqbert.load(folder, precision="float") as model:
        assert model([*TEXTS], LABELS, threshold=0.0) == [[], [], []]


def test_a_long_text_is_read_in_windows_that_end_as_texts_do(tmp_path) -> None:
    folder = save_gliner2(tmp_path / "model", "bert")
    words = [word for each in WORDS[:100] for word in (each, "house", "!")]
    with qdqbert.load(folder, precision="float") as model:
        job = model.job(labels=LABELS[:1])
        (encoded,) = job.encode([" ".join(words)])
        shown = [job.reader.tokenizer.decode(each["input_ids"]) for each in encoded.features]
    assert len(shown) > 1
    assert all(each.endswith((".", "!")) for each in shown)
    assert not any(each.endswith("! .") for each in shown)
    windows = encoded.places
    assert windows[-1].stop == len(words)
    assert all(b.first < a.stop for a, b in itertools.pairwise(windows))


def test_int8_is_close_to_float(folder, model) -> None:
    with qdqbert.load(folder) as rounded:
        assert rounded.target == "native-dynamic"
        assert f"max_width={MAX_WIDTH}" in repr(rounded)
        assert 0 < rounded.facts["largest_difference"] < 0.1
        found, wanted = (
            {each[:3]: each[3] for each in in_order(one(TEXTS[0], LABELS, threshold=0.3))}
            for one in (rounded, model)
        )
    both = found.keys() & wanted.keys()
    assert len(both) > len(wanted) // 2
    assert all(abs(found[each] - wanted[each]) < 0.1 for each in both)


def changed(folder: Path, to: Path, **settings: Any) -> Path:
    """Return a copy of a folder with other settings; those of the encoder by their file."""
    copy = shutil.copytree(folder, to)
    content = json.loads((copy / "config.json").read_text()) | settings
    (copy / "config.json").write_text(json.dumps(content))
    return copy


def test_a_tokenizer_without_the_marks_gets_them_as_gliner2_adds_them(folder, tmp_path) -> None:
    copy = changed(folder, tmp_path / "copy")
    path = copy / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"] = [x for x in content["added_tokens"] if x["content"] not in MARKS]
    path.write_text(json.dumps(content))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("extra_special_tokens", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with qdqbert.load(folder, check=False) as model, qdqbert.load(copy, check=False) as other:
        assert other(TEXTS[0], LABELS) == model(TEXTS[0], LABELS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "token"}, "`architecture='token'` .* expected boundary, span"),
        (
            {"model_type": "gliner2", "classification_temperature": 0},
            "`classification_temperature=0",
        ),
        ({"architecture_version": 2}, "`architecture_version=2`"),
        ({"counting_layer": "count_gru"}, "`counting_layer='count_gru'` .* count_lstm_v2"),
        ({"token_pooling": "last"}, "`token_pooling='last'`"),
        ({"span_head": {"span_mode": "marker"}}, "`span_mode='marker'`"),
        ({"max_width": 0}, "'max_width' is 0"),
        ({"counting_layer": "count_lstm_v2"}, "no tensor `count_embed.transformer"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(settings, message, folder, tmp_path) -> None:
    with pytest.raises(qdqbert.CheckpointError, match=message):
        qdqbert.load(changed(folder, tmp_path / "copy", **settings))


def test_the_config_of_the_encoder_has_to_be_there(folder, tmp_path) -> None:
    copy = changed(folder, tmp_path / "copy")
    (copy / "encoder_config" / "config.json").unlink()
    with pytest.raises(qdqbert.CheckpointError, match=r"no encoder_config/config.json.*GLiNER2"):
        qdqbert.load(copy)


@pytest.mark.usual("*gru.weight*", "*lora*", "other*")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("count_embed.gru.weight_hh_l0", "fits|fit"),
        ("count_embed.projector.0.weight", "fits|fit"),
        ("count_pred.0.bias", "fits|fit"),
        ("span_rep.span_rep_layer.out_project.0.weight", "fits|fit"),
        ("count_embed.gru.lora_A.weight", "weights of an adapter"),
        ("other.weight", "has the tensor `other.weight`, which"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(name, message, folder, tmp_path) -> None:
    copy = changed(folder, tmp_path / "copy")
    tensors = safetensors.torch.load_file(copy / "model.safetensors")
    found = tensors.get(name, torch.zeros(2))
    tensors[name] = torch.cat([found, found], dim=-1)
    safetensors.torch.save_file(tensors, copy / "model.safetensors")
    with pytest.raises(qdqbert.CheckpointError, match=message):
        qdqbert.load(copy)("a text", ["a"])


def test_layers_of_another_width_are_refused_when_they_are_used(tmp_path) -> None:
    folder = save_gliner2(tmp_path / "model", none=-9.0)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name in ("classifier.0.weight", "count_embed.projector.0.weight"):
        tensors[name] = tensors[name][:, :8].clone()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with qdqbert.load(folder, precision="float") as model:
        for call in (
            lambda: model.decide("a text", ["a", "b"]),
            lambda: model.extract_json("a text", {"a": ["b"]}),
        ):
            with pytest.raises(qdqbert.CheckpointError, match="do not fit the encoder of"):
                call()


MOODS = ["glad", "the name of a book", "sad"]


def scores_of(found: Any) -> dict[str, float]:
    return dict(zip(found["labels"], found["scores"], strict=True))


@pytest.fixture(scope="module")
def classifier(folder):
    with qdqbert.load(folder, task="zero-shot-classification", precision="float") as found:
        yield found


def test_labels_are_scored_as_in_gliner2(folder, classifier) -> None:
    reference = Reference(folder)
    expected = [reference.logits(text, {"mood": MOODS})[0] for text in TEXTS]
    single = classifier(TEXTS, MOODS, task_name="mood")
    several = classifier(TEXTS, MOODS, task_name="mood", multi_label=True)
    for logits, one, each in zip(expected, single, several, strict=True):
        for wanted, found in ((logits.softmax(dim=-1), one), (logits.sigmoid(), each)):
            scores = scores_of(found)
            assert scores == pytest.approx(dict(zip(MOODS, wanted.tolist(), strict=True)), abs=1e-4)
            assert found["labels"] == sorted(MOODS, key=lambda label: -scores[label])
    assert classifier(TEXTS, MOODS) == classifier(TEXTS, MOODS, task_name="category") != single
    assert isinstance(classifier, qdqbert.ZeroShotClassifier)


def test_a_decision_reads_descriptions_and_all_questions_at_once(folder, classifier) -> None:
    reference, options = Reference(folder), {"refund": "the money", "other": None}
    (logits,) = reference.logits(TEXTS[0], {"topic": options})
    found = classifier.decide(TEXTS[0], options, task_name="topic")
    expected = dict(zip(options, logits.softmax(dim=-1).tolist(), strict=True))
    assert found["probabilities"] == pytest.approx(expected, abs=1e-4)
    questions = {
        "mood": {"type": "choice", "criteria": dict.fromkeys(MOODS)},
        "how much": {"type": "score", "criteria": ["none", "some", "all"]},
        "is it so": {"type": "noul", "criteria": {"true": "the cat is at home"}},
    }
    tasks = {"mood": MOODS, "how much": ["none", "some", "all"], "is it so": ["the cat is at home"]}
    mood, much, so = reference.logits(TEXTS[0], tasks)
    answers = classifier.decide(TEXTS[0], questions=questions)
    for name, each, wanted in (("mood", MOODS, mood), ("how much", "012", much)):
        expected = dict(zip(each, wanted.softmax(dim=-1).tolist(), strict=True))
        assert answers[name]["probabilities"] == pytest.approx(expected, abs=1e-4)
    assert answers["is it so"]["noul"] == pytest.approx(float(so.sigmoid()[0]), abs=1e-4)


def test_a_model_for_entities_decides_too(model, classifier, tmp_path) -> None:
    assert model.decide(TEXTS[0], MOODS) == classifier.decide(TEXTS[0], MOODS)
    data, output = tmp_path / "texts.txt", tmp_path / "out.jsonl"
    data.write_text("\n".join(TEXTS))
    options = {"labels": MOODS, "target": "float"}
    qdqbert.run(model.name, data, output, task_name="mood", **options)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    wanted = classifier(TEXTS, MOODS, task_name="mood")
    assert [row["label"] for row in rows] == [each["labels"][0] for each in wanted]
    qdqbert.run(model.name, data, output, overwrite=True, **options)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert all("entities" in row for row in rows)


def test_a_text_that_is_too_long_is_cut_and_ends_as_texts_do(classifier) -> None:
    reader = classifier.job(candidate_labels=MOODS).reader
    long, short = reader.encode(["the cat " * 1000, "the cat"])
    assert (long.truncated, short.truncated) == (True, False)
    assert len(long.features[0]["input_ids"]) == classifier.max_length
    ends = [each.features[0]["input_ids"][-1] for each in (long, short)]
    assert ends[0] == ends[1]
    assert set(scores_of(classifier("", MOODS))) == {*MOODS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hypothesis_template": "It is {}."}, "is for classifiers of entailment"),
        ({"entailment_label": "a"}, "is for classifiers of entailment"),
        ({"task_name": " "}, "`task_name` has to be a text"),
        ({"candidate_labels": ["the cat " * 900]}, "`candidate_labels` are 1 label of"),
    ],
)
def test_wrong_options_of_labels_are_refused(options, message, classifier) -> None:
    with pytest.raises(qdqbert.UserInputError, match=message):
        classifier("a text", **{"candidate_labels": MOODS, **options})


def test_a_name_of_questions_is_refused(classifier) -> None:
    questions = {"mood": {"type": "choice", "criteria": dict.fromkeys(MOODS)}}
    with pytest.raises(qdqbert.UserInputError, match="each of `questions` has a name"):
        classifier.decide("a text", questions=questions, task_name="mood")


def test_other_tasks_are_refused(folder, tmp_path, write_file) -> None:
    data, task = write_file("data.csv", "text,label\na,b\nc,d\n"), "text-classification"
    with pytest.raises(qdqbert.UserInputError, match="which gliner2 saved, are for 'entity-ext"):
        qdqbert.quantize(folder, tmp_path / "out", task=task)
    for options in ({}, {"engine": "native"}):
        with pytest.raises(qdqbert.UserInputError, match=r"does not fit .* 'entity-ex"):
            qdqbert.evaluate(folder, data, task=task, **options)


def labeled(path: Path) -> Path:
    """Write texts with labels of two kinds."""
    rows = [f"the {word} was {word},{('animal', 'place')[n % 2]}" for n, word in enumerate(WORDS)]
    path.write_text("text,label\n" + "\n".join(rows[:60]))
    return path


def test_labeled_texts_are_evaluated_as_the_model_answers(folder, boundary, tmp_path) -> None:
    data, task = labeled(tmp_path / "data.csv"), "zero-shot-classification"
    texts = [line.split(",") for line in data.read_text().splitlines()[1:]]
    for place, options in ((folder, {"task": task}), (boundary, {})):
        with qdqbert.load(place, task=task, precision="float") as own:
            found = own([text for text, _ in texts], ["animal", "place"])
        right = sum(x["labels"][0] == label for x, (_, label) in zip(found, texts, strict=True))
        report = qdqbert.evaluate(place, data, **options)
        accuracy = next(each for each in report.metrics if each.name == "accuracy")
        assert accuracy.value == pytest.approx(100 * right / len(texts))
    rounded = qdqbert.evaluate(boundary, data, engine="native")
    assert rounded.metrics[0].value == pytest.approx(accuracy.value, abs=10)


@pytest.mark.slow
def test_labels_are_quantized_with_data(folder, boundary, tmp_path) -> None:
    data, task = labeled(tmp_path / "data.csv"), "zero-shot-classification"
    for number, place in enumerate((folder, boundary)):
        output = tmp_path / f"out{number}"
        report = qdqbert.quantize(
            place,
            output,
            task=task,
            calibration_data=data,
            targets=["native"],
            calibration=qdqbert.Calibration(samples=30),
            benchmark=False,
            progress=False,
        )
        assert report.task == task
        with (
            qdqbert.load(output) as own,
            qdqbert.load(place, task=task, precision="float") as wanted,
        ):
            assert type(own) is type(wanted)
            found = own(TEXTS[0], MOODS, multi_label=True)
            assert own.facts["decision_temperature"] != 1
            expected = scores_of(wanted(TEXTS[0], MOODS, multi_label=True))
        assert scores_of(found) == pytest.approx(expected, abs=0.05)
        accuracy = qdqbert.evaluate(output, data, allow_leakage=True).metrics[0]
        assert accuracy.name == "accuracy"
        with pytest.raises(qdqbert.UserInputError, match="is a model of gliner2, whose layers"):
            qdqbert.export(output, to="triton", output=tmp_path / "triton")


@pytest.mark.slow
def test_a_quantized_folder_does_what_the_checkpoint_does(folder, model, tmp_path) -> None:
    output = tmp_path / "out"
    qdqbert.quantize(
        folder,
        output,
        targets=["native-dynamic"],
        calibration=qdqbert.Calibration(samples=4),
        benchmark=False,
        progress=False,
    )
    with qdqbert.load(output) as own:
        assert len(own(TEXTS[0], LABELS, threshold=0.3)) > 0
        found = own.decide(TEXTS[0], MOODS)["probabilities"]
    assert found == pytest.approx(model.decide(TEXTS[0], MOODS)["probabilities"], abs=0.05)
    with qdqbert.load(output, task="zero-shot-classification") as labels:
        assert labels.decide(TEXTS[0], MOODS)["probabilities"] == found


ORDER = {"order": ["item", "size::[small|large]", "number::str"]}
# The choices as they are read: words before those of the text.
CHOICES = ["(", "order:", "size", "(", "small", "|", "large", ")", ")"]


@pytest.mark.parametrize("layer", ["count_lstm", "count_lstm_v2", "count_lstm_moe"])
@pytest.mark.usual("count_lstm_v2")
def test_structures_are_those_of_gliner2(layer, tmp_path) -> None:
    folder = save_gliner2(tmp_path / "model", counting_layer=layer, none=-9.0)
    reference = Reference(folder)
    wanted = reference.instances(TEXTS[0], "order", ("item", "size", "number"), CHOICES)
    assert wanted
    threshold = threshold_of([span for spans, _ in wanted for span in spans])
    with qdqbert.load(folder, precision="float") as model:
        options = {"threshold": threshold, "include_confidence": True, "include_spans": True}
        found = model.extract_json(TEXTS[0], ORDER, **options)["order"]
        plain = model.extract_json([TEXTS[0], ""], ORDER, threshold=threshold)
    expected = []
    for spans, scores in wanted:
        of_field = {
            name: sorted(chosen([x for x in spans if x[2] == name], threshold), key=lambda x: -x[3])
            for name in ("item", "number")
        }
        values = {name: [(x[0], x[1], x[3]) for x in own] for name, own in of_field.items()}
        small, large = (scores["size"][CHOICES.index(each)] for each in ("small", "large"))
        best = ("small", small) if small >= large else ("large", large)
        size = best if best[1] > threshold else None
        expected.append((values["item"], size, values["number"][:1]))
    made = [
        (
            [(x["start"], x["end"], x["confidence"]) for x in each["item"]],
            each["size"] and (each["size"]["text"], each["size"]["confidence"]),
            [(x["start"], x["end"], x["confidence"]) for x in [each["number"]] if x],
        )
        for each in found
    ]
    for own, other in zip(made, [each for each in expected if any(each)], strict=True):
        assert own[0] == [pytest.approx(each, abs=1e-4) for each in other[0]]
        assert own[1] == (other[1] and (other[1][0], pytest.approx(other[1][1], abs=1e-4)))
        assert own[2] == [pytest.approx(each, abs=1e-4) for each in other[2]]
    texts = [each["item"] for each in plain[0]["order"]]
    assert texts == [distinct([x["text"] for x in each["item"]]) for each in found]
    assert plain[1] == {"order": []}


def distinct(texts: list[str]) -> list[str]:
    return list({each.lower(): each for each in reversed(texts)}.values())[::-1]


@pytest.mark.parametrize(
    ("structures", "message"),
    [
        ({}, "`structures`: expected lists of fields by name, got dict"),
        (["a"], "`structures`: expected lists of fields by name, got list"),
        ({"a": "b"}, "'a' has to be a list of fields, got str 'b'"),
        ({"a": []}, "'a' has to be a list of fields"),
        ({" ": ["b"]}, "names have to be texts, got str"),
        ({"a": ["b", "b::str"]}, "'a' has a field twice"),
        ({"a": [3]}, "a field of 'a' is int 3"),
        ({"a": ["::str"]}, "a field of 'a' has no name"),
        ({"a": [{"name": "b", "validators": []}]}, "a field of 'a' has 'validators'"),
        ({"a": [{"name": "b", "dtype": "int"}]}, "`dtype` of 'b' is str 'int'"),
        ({"a": [{"name": "b", "choices": "x"}]}, "`choices` of 'b' have to be a list"),
        ({"a": ["b::[x|]"]}, "`choices` of 'b' have to be a list"),
        ({"a": [{"name": "b", "description": 1}]}, "the description of 'b' has to be a text"),
        ({"a": ["the cat " * 900]}, "`structures` are 1 field of"),
    ],
)
def test_structures_that_are_not_as_described_are_refused(structures, message, model) -> None:
    with pytest.raises(qdqbert.UserInputError, match=message):
        model.extract_json("a text", structures)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.usual("True-jsonl", "False-parquet")
def test_each_structure_of_a_run_is_a_column(suffix, as_json, tmp_path) -> None:
    folder = save_gliner2(tmp_path / "model", none=-9.0)
    data, output = tmp_path / "texts.jsonl", tmp_path / f"answers.{suffix}"
    data.write_text("\n".join(json.dumps({"text": each, "order": 1}) for each in TEXTS))
    structures = {**ORDER, "trip": ["place::str"]}
    given = json.dumps(structures) if as_json else structures
    qdqbert.run(folder, data, output, structures=given, threshold=0.4, target="float")
    lines = output.read_text().splitlines() if suffix == "jsonl" else ()
    rows = [json.loads(line) for line in lines] or pyarrow.parquet.read_table(output).to_pylist()
    with qdqbert.load(folder, precision="float") as model:
        expected = model.extract_json(TEXTS, structures, threshold=0.4)
    assert any(each["order"] for each in expected)
    assert [row["predicted_order"] for row in rows] == [each["order"] for each in expected]
    assert [row["trip"] for row in rows] == [each["trip"] for each in expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structures": "order"}, r"`structures`: 'order' is no JSON object \(Expecting value"),
        ({"structures": '{"a": ["b"], "a": ["c"]}'}, r"is no JSON object \('a' is there twice"),
        ({"structures": "[]"}, r"`structures`: '\[\]' is no JSON object"),
        ({"structures": {"order": []}}, "'order' has to be a list of fields"),
        ({"structures": {"order": {1}}}, "`structures` cannot be written as JSON"),
        ({"structures": {"text": ["a"], "predicted_text": ["b"]}}, "names of an answer"),
        ({"structures": ORDER, "labels": "a"}, r"`labels=\('a',\)` does not apply to a model that"),
    ],
)
def test_structures_of_a_run_that_cannot_be_read_are_refused(
    options, message, model, tmp_path
) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    with pytest.raises(qdqbert.UserInputError, match=message):
        qdqbert.run(model.name, data, tmp_path / "out.jsonl", target="float", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"structures": "order"},
        {"structures": "{}"},
        {"structures": '{"order": [1]}'},
        {"hypothesis_template": "about"},
    ],
    ids=str,
)
def test_a_run_checks_what_it_can_before_it_loads_a_model(options, folder, tmp_path) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    damaged = changed(folder, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"")
    (name,) = options
    with pytest.raises(qdqbert.UserInputError) as error:
        qdqbert.run(damaged, data, tmp_path / "out.jsonl", **options)
    assert error.value.argument == name


def test_a_run_without_labels_is_told_of_structures(folder, tmp_path) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    with pytest.raises(qdqbert.UserInputError, match=r"^`labels` or `structures` is missing: "):
        qdqbert.run(folder, data, tmp_path / "out.jsonl", target="float")


def as_transformers(folder: Path, to: Path, **settings: Any) -> Path:
    """Return a copy of a folder in the form of transformers, with the encoder's config inside."""
    copy = changed(folder, to)
    encoder = json.loads((copy / "encoder_config" / "config.json").read_text())
    shutil.rmtree(copy / "encoder_config")
    content = json.loads((copy / "config.json").read_text())
    content |= {"model_type": "gliner2", "encoder_config": encoder, "span_head": None, **settings}
    (copy / "config.json").write_text(json.dumps(content))
    return copy


def test_checkpoints_of_transformers_are_those_of_the_package(folder, model, tmp_path) -> None:
    copy = as_transformers(folder, tmp_path / "copy", classification_temperature=2.0)
    with qdqbert.load(copy, precision="float") as other:
        assert other(TEXTS[0], LABELS, threshold=0.3) == model(TEXTS[0], LABELS, threshold=0.3)
        found = other.decide(TEXTS[0], MOODS)
        assert found == model.decide(TEXTS[0], MOODS, temperature=2.0)


@pytest.fixture(scope="module")
def boundary(folder, tmp_path_factory) -> Path:
    """Return a checkpoint with other layers for spans, and equal ones for labels."""
    head = {"classification_temperature": 2.0}
    copy = changed(
        folder,
        tmp_path_factory.mktemp("boundary") / "model",
        architecture="boundary",
        boundary_head=head,
    )
    tensors = safetensors.torch.load_file(copy / "model.safetensors")
    kept = {name: x for name, x in tensors.items() if name.startswith(("encoder.", "classifier."))}
    kept["boundary_head.start.weight"] = torch.zeros(2, 2)
    safetensors.torch.save_file(kept, copy / "model.safetensors")
    return copy


def test_of_the_other_architecture_labels_are_scored(boundary, model, caplog) -> None:
    caplog.set_level("INFO", "qdqbert")
    with qdqbert.load(boundary, precision="float") as own:
        assert isinstance(own, qdqbert.ZeroShotClassifier)
        assert "entities, structures and relations are not computed" in caplog.text
        assert own.decide(TEXTS[0], MOODS) == model.decide(TEXTS[0], MOODS, temperature=2.0)
    with qdqbert.load(boundary) as rounded:
        found = rounded.decide(TEXTS[0], MOODS)["probabilities"]
    wanted = model.decide(TEXTS[0], MOODS, temperature=2.0)["probabilities"]
    assert found == pytest.approx(wanted, abs=0.05)


def test_what_is_not_computed_of_the_other_architecture_is_refused(boundary, tmp_path) -> None:
    with pytest.raises(qdqbert.UserInputError, match="is a model for 'zero-shot-classification'"):
        qdqbert.load(boundary, task="entity-extraction")
    with pytest.raises(qdqbert.UserInputError, match="are for 'zero-shot-classification'"):
        qdqbert.quantize(boundary, tmp_path / "out", task="entity-extraction")
