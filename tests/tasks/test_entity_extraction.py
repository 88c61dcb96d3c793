"""Entities that a call names: against definitions of gliner written out in torch."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers

import qdqbert
from conftest import ROBERTA_SPECIAL, WORDS, make_config, make_tokenizer
from gliner_models import MAX_WIDTH, as_older_versions, save_gliner
from gliner_reference import Reference, same
from hub_server import Repository, running_hub
from python_process import run_python
from qdqbert.data.tokenizing.sentencepiece_model import read_sentencepiece
from qdqbert.encoders.checkpoint.description import describe_checkpoint
from qdqbert.engines.native.storage import load_packed
from qdqbert.runtime.inputs import listed_labels
from qdqbert.runtime.options import AnswerOptions
from qdqbert.tasks.extraction import Words
from spm_models import write_spm

TEXTS = (
    "the house of the cat is in london, and the dog came home last night.",
    "new york-city is 3.5 great; books and music",
    "a",
)
LABELS = ("city", "the name of a person", "animal")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_gliner(tmp_path_factory.mktemp("gliner") / "model")


@pytest.fixture(scope="module")
def model(folder):
    with qdqbert.load(folder, precision="float") as found:
        yield found


@pytest.fixture(scope="module")
def reference(folder) -> Reference:
    return Reference(folder)


def thresholds(reference: Reference) -> list[float]:
    """Return thresholds that a third and a tenth of all spans exceed, none of them by little."""
    every = [
        each["score"]
        for text in TEXTS
        for each in reference.find(text, LABELS, threshold=0.0, flat=False, multi_label=True)
    ]
    scores = sorted(every, reverse=True)
    places = [range(len(scores) // share, len(scores) // share + 9) for share in (3, 10)]
    found = [max(each, key=lambda index: scores[index] - scores[index + 1]) for each in places]
    return [(scores[each] + scores[each + 1]) / 2 for each in found]


def check(folder: Path) -> None:
    wanted = Reference(folder)
    with qdqbert.load(folder, precision="float") as model:
        for threshold in thresholds(wanted):
            found = model(TEXTS, LABELS, threshold=threshold)
            each = [wanted.find(text, LABELS, threshold=threshold) for text in TEXTS]
            assert all(map(same, found, each))
            assert any(found)


@pytest.mark.usual("markerV0", "token_level")
@pytest.mark.parametrize("mode", ["markerV0", "markerV1", "marker", "token_level"])
def test_each_kind_of_scores_is_gliners(mode, tmp_path) -> None:
    check(save_gliner(tmp_path / "model", span_mode=mode))


@pytest.mark.usual("modernbert")
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_each_encoder_runs(family, tmp_path) -> None:
    check(save_gliner(tmp_path / "model", family))


@pytest.mark.usual("mean", "layers", "marker")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"subtoken_pooling": "last"}, id="last"),
        pytest.param({"subtoken_pooling": "mean"}, id="mean"),
        pytest.param({"subtoken_pooling": "max"}, id="max"),
        pytest.param({"num_rnn_layers": 0, "seed": 1}, id="no-layers"),
        pytest.param({"num_rnn_layers": 2}, id="layers"),
        pytest.param({"embed_ent_token": False}, id="marker"),
    ],
)
def test_settings_mean_what_they_mean_in_gliner(settings, tmp_path) -> None:
    check(save_gliner(tmp_path / "model", **settings))


@pytest.fixture(scope="module")
def two_encoders(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("gliner") / "model"
    return save_gliner(folder, "modernbert", labels_type="bert")


def test_labels_of_a_second_encoder_are_gliners(two_encoders, tmp_path) -> None:
    check(two_encoders)
    settings = {"width": 32, "span_mode": "token_level"}
    check(save_gliner(tmp_path / "model", "bert", labels_type="modernbert", **settings))


def test_a_second_encoder_runs_in_int8_and_on_another_engine(two_encoders) -> None:
    every = {"threshold": 0.0, "multi_label": True, "flat_ner": False}
    with qdqbert.load(two_encoders, precision="float") as model:
        wanted = model(TEXTS[0], LABELS, **every)
        # A token that gliner adds for labels is a text here.
        assert model("<<ENT>> is a house", LABELS, threshold=0.0)
    with qdqbert.load(two_encoders, precision="float", engine="onnxruntime") as model:
        assert same(model(TEXTS[0], LABELS, **every), wanted)
    with qdqbert.load(two_encoders) as model:
        assert 0 < model.facts["largest_difference"] < 0.2
        packed = model.directory / "labels_encoder" / "model.safetensors"
        assert {each.dtype for each in load_packed(packed).arrays.values()} >= {np.dtype(np.int8)}
        found = model(TEXTS[0], LABELS, **every)
        assert len(found) == len(wanted)
    with pytest.raises(qdqbert.ModelClosedError):
        model(TEXTS[0], ["another label"])


def test_the_model_that_labels_encoder_names_has_its_config_and_tokenizer(
    two_encoders, tmp_path
) -> None:
    copy = shutil.copytree(two_encoders, tmp_path / "copy")
    base = tmp_path / "base"
    shutil.move(copy / "labels_tokenizer", base)
    path = copy / "gliner_config.json"
    values = json.loads(path.read_text())
    (base / "config.json").write_text(json.dumps(values.pop("labels_encoder_config")))
    path.write_text(json.dumps(values))
    with pytest.raises(qdqbert.CheckpointError, match="`labels_encoder='another/model'`"):
        qdqbert.load(copy)
    path.write_text(json.dumps(values | {"labels_encoder": str(base)}))
    options = {"precision": "float", "check": False}
    with qdqbert.load(copy, **options) as model, qdqbert.load(two_encoders, **options) as other:
        assert model(TEXTS, LABELS) == other(TEXTS, LABELS)


def test_a_tokenizer_of_labels_without_its_file_is_named(two_encoders, tmp_path) -> None:
    copy = shutil.copytree(two_encoders, tmp_path / "copy")
    (copy / "labels_tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(qdqbert.CheckpointError, match="copy/labels_tokenizer' has no tokenizer"):
        qdqbert.load(copy)


@pytest.fixture(scope="module")
def two_int8_encoders(two_encoders, tmp_path_factory) -> Path:
    """A folder of `quantize` with two encoders, of which the first one is for two targets."""
    output = tmp_path_factory.mktemp("gliner") / "int8"
    qdqbert.quantize(
        two_encoders,
        output,
        targets=["native", "onnxruntime"],
        calibration=qdqbert.Calibration(samples=10),
        benchmark=False,
        progress=False,
    )
    return output


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_quantize_keeps_the_second_encoder_as_load_runs_it(
    engine, two_encoders, two_int8_encoders
) -> None:
    with qdqbert.load(two_encoders) as model:
        packed = (model.directory / "labels_encoder" / "model.safetensors").read_bytes()
    with qdqbert.load(two_encoders, precision="float") as model:
        wanted = scores_of(model)
    kept = two_int8_encoders / "labels_encoder" / "model.safetensors"
    assert kept.read_bytes() == packed
    with qdqbert.load(two_int8_encoders, engine=engine) as model:
        found = scores_of(model)
    both = found.keys() & wanted.keys()
    assert len(both) > len(wanted) // 2
    assert all(abs(found[each] - wanted[each]) < 0.1 for each in both)


def test_checkpoints_with_a_second_encoder_are_evaluated(
    two_encoders, two_int8_encoders, tmp_path
) -> None:
    data = tmp_path / "data.conll"
    data.write_text("the O\ncat B-animal\n\nlondon B-city\nrain O\n")
    options = {"data": data, "progress": False}
    in_float = qdqbert.evaluate(two_encoders, **options)
    assert [each.name for each in in_float.metrics] == ["f1", "precision", "recall"]
    assert qdqbert.evaluate(two_encoders, engine="native", **options).metrics
    compared = qdqbert.evaluate(two_int8_encoders, reference=two_encoders, **options)
    assert 0 < compared.fidelity.entities.largest_difference < 0.1


@pytest.mark.parametrize("verb", [qdqbert.load, qdqbert.evaluate])
def test_a_folder_without_its_encoder_of_labels_is_refused(
    verb, two_int8_encoders, tmp_path
) -> None:
    copy = shutil.copytree(two_int8_encoders, tmp_path / "copy")
    shutil.rmtree(copy / "labels_encoder")
    options = {"reference": copy, "progress": False} if verb is qdqbert.evaluate else {}
    with pytest.raises(qdqbert.CheckpointError, match="copy' is incomplete: labels_encoder is m"):
        verb(copy, **options)


def test_folders_of_the_hub_have_the_layers_after_the_encoder_and_the_second_one(
    two_int8_encoders, tmp_path
) -> None:
    call = f"model({TEXTS[0]!r}, {LABELS!r}, threshold=0.0)"
    code = (
        f"import json, qdqbert; model = qdqbert.load('someone/gliner'); print(json.dumps({call}))"
    )
    with running_hub() as hub:
        hub.repositories["someone/gliner"] = Repository.of_folder(two_int8_encoders)
        found = run_python("-c", code, env=hub.environment(tmp_path / "home"))
    with qdqbert.load(two_int8_encoders) as model:
        assert same(json.loads(found), model(TEXTS[0], LABELS, threshold=0.0))


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_nested_entities_and_several_labels_are_gliners(
    flat, multi_label, model, reference
) -> None:
    for threshold in thresholds(reference):
        options = {"threshold": threshold, "multi_label": multi_label}
        found = model(TEXTS[0], LABELS, flat_ner=flat, **options)
        assert same(found, reference.find(TEXTS[0], LABELS, flat=flat, **options))


def test_many_spans_that_stay_are_chosen_like_few(model, reference) -> None:
    options = {"threshold": 0.0, "multi_label": True}
    found = model(TEXTS[1], LABELS, flat_ner=False, **options)
    assert len(found) > 100 or len(found) > len(TEXTS[1].split()) * len(LABELS)
    wanted = reference.find(TEXTS[1], LABELS, flat=False, **options)
    # Equal scores of float64 and float32 are in another order.
    keys = [{(e["start"], e["end"], e["label"]) for e in each} for each in (found, wanted)]
    assert len(keys[0] ^ keys[1]) < len(wanted) // 10


def test_empty_texts_and_no_labels_have_no_entities(model) -> None:
    assert model(["", " \n", TEXTS[2]], LABELS, threshold=0.99) == [[], [], []]
    assert model("", LABELS) == []
    assert model(list(TEXTS), labels=[]) == [[], [], []]
    assert model([], LABELS) == []


def test_a_label_is_read_as_its_description_and_found_by_its_name(model) -> None:
    found = model(TEXTS[0], {"A": LABELS[0], "B": LABELS[1]}, threshold=0.3)
    wanted = model(TEXTS[0], LABELS[:2], threshold=0.3)
    names = dict(zip("AB", LABELS, strict=False))
    assert [{**each, "label": names[each["label"]]} for each in found] == wanted


def test_a_label_that_is_named_twice_counts_once(model) -> None:
    assert model(TEXTS[0], ["city", "city"]) == model(TEXTS[0], "city")


def test_labels_in_any_script_and_empty_ones_are_read(model, reference) -> None:
    labels = ("城市", "Ort", "")
    found = model(TEXTS[0], labels, threshold=0.3)
    assert found
    # The reference's prompts are words, of which an empty one has no token.
    assert same(
        model(TEXTS[0], labels[:2], threshold=0.3),
        reference.find(TEXTS[0], labels[:2], threshold=0.3),
    )


def test_answers_do_not_depend_on_the_other_texts_of_a_call(model) -> None:
    together = model([*TEXTS, " ".join(TEXTS)], LABELS, threshold=0.3)
    assert together[:3] == [model(text, LABELS, threshold=0.3) for text in TEXTS]


def test_a_long_text_is_read_in_windows_that_share_words(model) -> None:
    words = [word for each in WORDS[:12] for word in (each, "house", ".")]
    text = " ".join(words)
    reader = model.job(labels=LABELS).reader
    features, windows = next(reader.read([Words(words, len(words))]))
    assert [each.first for each in windows] == [0, 18]
    # The checkpoint reads 24 words together, and a span has 4 words at most.
    assert all(len(each.tokens.words) <= 24 for each in windows)
    spans = [
        (first, last)
        for first in range(len(words))
        for last in range(first, min(first + MAX_WIDTH, len(words)))
    ]
    assert all(
        any(each.first <= first and last < each.stop for each in windows) for first, last in spans
    )
    ids = features[1]["input_ids"]
    shown = [reader.tokenizer.decode([ids[place]]) for place, _ in windows[1].tokens.words]
    assert shown == words[18:]
    found = model(text, LABELS, threshold=0.0)
    assert found[-1]["end"] == len(text)
    assert all(text[each["start"] : each["end"]] == each["text"] for each in found)
    ends = [each["end"] for each in found]
    assert all(end < each["start"] for end, each in zip(ends, found[1:], strict=False))


def test_a_span_counts_in_the_window_where_it_is_farthest_from_the_ends() -> None:
    from qdqbert.tasks.extraction import Window, merged
    from qdqbert.tasks.span_scores import Found, Tokens

    def window(first: int, count: int) -> Window:
        return Window(first, Tokens(np.zeros(0, np.int64), np.zeros((count, 2), np.int64)))

    def found(first: int, last: int, score: float) -> Found:
        places = (np.array([each]) for each in (first, last, 0))
        return Found(*places, np.array([score], np.float32))

    # Words 0 to 9 and 6 to 15. Word 7 is two words from the end of the first one.
    windows = [window(0, 10), window(6, 10)]
    chosen = merged(windows, [found(7, 7, 0.25), found(1, 1, 0.75)])
    assert [each.score for each in chosen] == [0.25]
    chosen = merged(windows, [found(8, 8, 0.25), found(2, 2, 0.75)])
    assert [each.score for each in chosen] == [0.75]
    # The text begins with the first window, so that nothing is missing before it.
    chosen = merged(windows, [found(0, 0, 0.25), found(9, 9, 0.75)])
    assert [(each.first, each.score) for each in chosen] == [(0, 0.25), (15, 0.75)]


def test_labels_that_leave_no_room_are_refused(model) -> None:
    labels = [f"kind {index}" for index in range(400)]
    with pytest.raises(qdqbert.UserInputError, match=r"`labels` are 400 labels of .* tokens"):
        model("a text", labels)


def test_words_without_tokens_do_not_move_the_entities_after_them(tmp_path) -> None:
    # gliner counts the words that have tokens, so that it gives "cat" the place of the space.
    folder = save_gliner(tmp_path / "model", num_rnn_layers=0)
    text, options = "the \u200b cat", {"threshold": 0.0, "multi_label": True, "flat_ner": False}
    with qdqbert.load(folder, precision="float", check=False) as model:
        with_space, without = (
            {each["text"]: each["score"] for each in model(every, "city", **options)}
            for every in (text, "the cat")
        )
    for word in ("the", "cat"):
        assert with_space[word] == pytest.approx(without[word], abs=1e-5)


def test_very_many_labels_are_refused_in_the_time_of_their_tokens(model) -> None:
    # Looking each mark up among all tokens would take minutes.
    labels = [f"k{index}" for index in range(50_000)]
    with pytest.raises(qdqbert.UserInputError, match=r"`labels` are 50000 labels of"):
        model("a text", labels)
    with pytest.raises(qdqbert.UserInputError, match=r"`candidate_labels` has 'k0' twice"):
        listed_labels([*labels, "k0"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": 3}, "`labels` must be a list of texts, or texts by name, got int 3"),
        ({"labels": ["a", None]}, "Each of `labels` has to be a text; got NoneType None"),
        ({"labels": [["a"]]}, r"Each of `labels` has to be a text; got list \['a'\]"),
        ({"labels": {"a": "x", "b": "x"}}, "gives two kinds of entities the same text"),
        ({"labels": "a", "threshold": 1.0}, "`threshold` must be a number from 0 to below 1"),
        ({"labels": "a", "threshold": "x"}, "`threshold` must be a number from 0 to below 1"),
    ],
)
def test_wrong_options_are_refused(options, message, model) -> None:
    with pytest.raises(qdqbert.UserInputError, match=message):
        model("a text", **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels_decoder": "x/y"}, "`labels_decoder='x/y'` .* a language model"),
        ({"relations_layer": "none"}, "relations between entities"),
        ({"fuse_layers": True}, "the states of all layers"),
        ({"post_fusion_schema": "l2l"}, "attention between words and labels"),
        ({"span_encoder_config": {"model_type": "rnn"}}, "an encoder of the words"),
        ({"precomputed_prompts_mode": True}, "labels that are stored"),
        ({"words_splitter_type": "spacy"}, "`words_splitter_type='spacy'` .* another package"),
        ({"span_mode": "conv_share"}, "`span_mode='conv_share'` .* expected one of marker"),
        ({"encoder_config": None}, "names the model that has them, `model_name='a/model'`. Model"),
        (
            {"encoder_config": None, "model_name": None},
            "names no model that has them: `model_name` is None",
        ),
        ({"subtoken_pooling": "sum"}, "'subtoken_pooling' is 'sum'"),
        ({"max_width": 0}, "'max_width' is 0"),
        (
            {"num_rnn_layers": 2},
            "pytorch_model.bin' has no tensor `rnn.lstm.weight_hh_l1` that fits `num_rnn_layers`",
        ),
        ({"ent_token": "24"}, r"gives .24. \(`ent_token`\) the id "),
        ({"num_rnn_layers": "1"}, "'num_rnn_layers' is '1'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(settings, message, folder, tmp_path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    content = json.loads((copy / "gliner_config.json").read_text()) | settings
    (copy / "gliner_config.json").write_text(json.dumps(content))
    with pytest.raises(qdqbert.CheckpointError, match=message):
        qdqbert.load(copy)


@pytest.mark.parametrize(
    "name",
    [
        "prompt_rep_layer.0.weight",
        "span_rep_layer.span_rep_layer.project_start.0.weight",
        "rnn.lstm.weight_ih_l0",
        "rnn.lstm.bias_hh_l0",
    ],
)
@pytest.mark.parametrize("change", ["wider", "one", "gone"])
@pytest.mark.usual("wider-*", "one-rnn*")
def test_tensors_that_do_not_fit_are_refused(change, name, folder, tmp_path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    file = copy / "pytorch_model.bin"
    tensors = torch.load(file)
    found = tensors.pop(name)
    if change == "wider":
        tensors[name] = torch.cat([found, found], dim=-1)
    elif change == "one":
        tensors[name] = found[..., :1].clone()
    torch.save(tensors, file)
    with pytest.raises(qdqbert.CheckpointError, match=r"that fits|do not fit"):
        qdqbert.load(copy)("a text", ["a"])


def scores_of(model: Any) -> dict[tuple[int, int, str], float]:
    """Return the score of each span that stays of a text, by its place and label."""
    found = model(TEXTS[0], LABELS, threshold=0.0, multi_label=True)
    return {(each["start"], each["end"], each["label"]): each["score"] for each in found}


def test_int8_says_how_many_entities_change(folder) -> None:
    with qdqbert.load(folder) as model:
        assert model.target == "native-dynamic"
        changed, _, of = model.facts["changed_entities"].partition(" of ")
        assert 0 <= int(changed) <= int(of)
        assert 0 < model.facts["largest_difference"] < 0.2
        assert f"max_width={MAX_WIDTH}" in repr(model)
        found = scores_of(model)
    with qdqbert.load(folder, precision="float") as model:
        assert "changed_entities" not in model.facts
        wanted = scores_of(model)
    both = found.keys() & wanted.keys()
    assert len(both) > len(wanted) // 2
    assert all(abs(found[each] - wanted[each]) < 0.1 for each in both)


def test_a_tokenizer_without_the_marks_gets_them_as_gliner_adds_them(folder, tmp_path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "tokenizer.json"
    content: dict[str, Any] = json.loads(path.read_text())
    marks = ("[FLERT]", "<<ENT>>", "<<SEP>>")
    content["added_tokens"] = [x for x in content["added_tokens"] if x["content"] not in marks]
    path.write_text(json.dumps(content))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("additional_special_tokens", None)
    settings.pop("extra_special_tokens", None)
    settings.pop("added_tokens_decoder", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with qdqbert.load(folder, check=False) as model, qdqbert.load(copy, check=False) as other:
        assert other(TEXTS[0], LABELS) == model(TEXTS[0], LABELS)


def save_base(folder: Path, vocabulary: str) -> tuple[Any, Any]:
    """Save config and tokenizer of an encoder, and return them with ids that it has."""
    config = make_config("deberta-v2", vocab_size=500)
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    if vocabulary == "tokenizer.json":
        make_tokenizer(ROBERTA_SPECIAL).save_pretrained(folder)
        return config, make_tokenizer(ROBERTA_SPECIAL)
    inner = read_sentencepiece(write_spm(folder) / "spm.model", {})
    named = {f"{each}_token": f"[{each.upper()}]" for each in ("cls", "sep", "unk", "pad", "mask")}
    return config, transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **named)


@pytest.mark.parametrize(
    ("vocabulary", "place"),
    [("spm.model", "folder"), ("tokenizer.json", "folder"), ("spm.model", "hub")],
)
def test_the_model_that_an_older_checkpoint_names_has_its_config_and_tokenizer(
    vocabulary, place, tmp_path, monkeypatch
) -> None:
    base, name = tmp_path / "base", str(tmp_path / "base")
    if place == "hub":
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        name, commit = "owner/base", "0" * 40
        repository = tmp_path / "hub" / "models--owner--base"
        base = repository / "snapshots" / commit
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit)
    config, tokenizer = save_base(base, vocabulary)
    folder = save_gliner(tmp_path / "model", config=config, tokenizer=tokenizer)
    older = as_older_versions(shutil.copytree(folder, tmp_path / "older"), name)
    with qdqbert.load(folder, precision="float") as model:
        wanted = model(TEXTS, LABELS, threshold=0.3)
    with qdqbert.load(older, precision="float") as model:
        assert model(TEXTS, LABELS, threshold=0.3) == wanted
    assert any(wanted)
    found, known = (describe_checkpoint(str(each)) for each in (older, folder))
    assert found.config.vocab_size == known.config.vocab_size == len(found.tokenizer)
    assert found.tokenizer(TEXTS)["input_ids"] == known.tokenizer(TEXTS)["input_ids"]


def test_a_config_of_another_width_is_named_with_its_own_place(tmp_path) -> None:
    config, tokenizer = save_base(tmp_path / "base", "tokenizer.json")
    folder = save_gliner(tmp_path / "model", config=config, tokenizer=tokenizer)
    older = as_older_versions(folder, tmp_path / "base")
    config.hidden_size *= 2
    config.save_pretrained(tmp_path / "base")
    with pytest.raises(qdqbert.CheckpointError, match=r"but .*/base/config\.json describes \("):
        qdqbert.load(older)


def test_a_tokenizer_next_to_an_older_checkpoint_comes_before_the_models(tmp_path) -> None:
    base = tmp_path / "base"
    config, _ = save_base(base, "spm.model")
    folder = save_gliner(tmp_path / "model", config=config)
    with qdqbert.load(folder, precision="float") as model:
        wanted = model(TEXTS, LABELS, threshold=0.3)
    kept = (folder / "tokenizer.json").read_text()
    as_older_versions(folder, base)
    (folder / "tokenizer.json").write_text(kept)
    with qdqbert.load(folder, precision="float") as model:
        assert model(TEXTS, LABELS, threshold=0.3) == wanted


def test_rows_get_the_entities_of_the_model(folder, model, tmp_path) -> None:
    source, output = tmp_path / "texts.txt", tmp_path / "entities.jsonl"
    source.write_text("\n".join(TEXTS))
    options = {"threshold": 0.2, "multi_label": True, "flat_ner": False}
    qdqbert.run(folder, source, output, labels="city, animal", target="float", **options)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    expected = model(TEXTS, ["city", "animal"], **options)
    assert [row["text"] for row in rows] == list(TEXTS)
    assert all(same(row["entities"], each) for row, each in zip(rows, expected, strict=True))
    with pytest.raises(qdqbert.UserInputError, match="`labels` is missing"):
        qdqbert.run(folder, source, tmp_path / "other.jsonl")
    with pytest.raises(qdqbert.UserInputError, match="`labels` has to be labels"):
        model.rows.job(model, AnswerOptions(labels=("city", "")))


def test_quantize_compares_entities_and_probabilities(folder, model, tmp_path) -> None:
    rng = random.Random(0)
    tags = ["O", "B-animal", "I-animal", "O", "B-city", "O"]
    sentences = [
        "\n".join(f"{word} {tag}" for word, tag in zip(rng.choices(WORDS, k=6), tags, strict=True))
        for _ in range(30)
    ]
    data = tmp_path / "data.conll"
    data.write_text("\n\n".join(sentences))
    output = tmp_path / "output"
    report = qdqbert.quantize(
        folder,
        output,
        eval_data=data,
        targets=["native-dynamic"],
        calibration=qdqbert.Calibration(samples=10),
        benchmark=False,
        progress=False,
    )
    assert report.task == "entity-extraction"
    assert [each.name for each in report.float_metrics] == ["f1", "precision", "recall"]
    fidelity = report.targets[0].fidelity
    assert fidelity.entities.entities > 0
    assert 0 < fidelity.entities.largest_difference < 0.2
    assert fidelity.cosine_mean is None
    with qdqbert.load(output) as own:
        found, wanted = scores_of(own), scores_of(model)
    # Where spans overlap, almost equal ones may be chosen in another order.
    both = found.keys() & wanted.keys()
    assert len(both) > len(wanted) // 2
    assert all(abs(found[each] - wanted[each]) < 0.1 for each in both)
    float_report = qdqbert.evaluate(folder, data=data, progress=False)
    metrics = {each.name: each.value for each in float_report.metrics}
    assert 0 <= metrics["f1"] <= 100
    compared = qdqbert.evaluate(
        output, data=data, reference=folder, allow_leakage=True, progress=False
    )
    assert compared.fidelity.entities.largest_difference < 0.2
