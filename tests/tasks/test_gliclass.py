"""Labels of a call by checkpoints of gliclass: against its definitions written out in torch."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import qdqbert
from conftest import WORDS
from gliclass_models import reference, save_gliclass
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.integrations import transformers

TEXTS = ["the cat sat on the book", "music", "a dog in the night"]
LABELS = ["music", "a dog in the night", "rain", "the book"]
SCORERS = {
    "simple": ["first", "last", "avg", "sum", "max", "rms", "abs_max", "abs_avg"],
    "weighted-dot": ["avg"],
    "mlp": ["max"],
    "hopfield": ["first"],
    "cross-attn": ["pass"],
}
SETTINGS = {
    "labels first": {"prompt_first": True},
    "means": {
        "prompt_first": True,
        "extract_text_features": True,
        "class_token_pooling": "average",
    },
    "means to the end": {"class_token_pooling": "average", "embed_class_token": False},
    "next token": {"embed_class_token": False, "extract_text_features": True},
    "lengths": {"normalize_features": True, "projector_hidden_act": "silu"},
    "calibrated": {"use_calibrator": True, "prompt_first": True},
    "lstm": {"use_lstm": True},
    "lstm of the text": {"use_lstm": True, "prompt_first": True, "extract_text_features": True},
    "shifted": {"use_calibrator": True, "calibrator_use_bias": True, "calibrator_beta_max": 2.0},
}


def check(folder) -> None:
    with qdqbert.load(folder, precision="float") as model:
        single, several = model(TEXTS, LABELS), model(TEXTS, LABELS, multi_label=True)
    for logits, one, each in zip(reference(folder, TEXTS, LABELS), single, several, strict=True):
        for expected, found in ((logits.softmax(dim=-1), one), (logits.sigmoid(), each)):
            scores = dict(zip(found["labels"], found["scores"], strict=True))
            wanted = dict(zip(LABELS, expected.tolist(), strict=True))
            assert scores == pytest.approx(wanted, abs=1e-5)
            assert found["labels"] == sorted(LABELS, key=lambda label: -scores[label])


@pytest.mark.parametrize(
    ("scorer", "pooling"), [(name, each) for name, found in SCORERS.items() for each in found]
)
def test_each_scorer_and_pooling_is_gliclass(scorer, pooling, tmp_path) -> None:
    check(save_gliclass(tmp_path / "model", scorer_type=scorer, pooling_strategy=pooling))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("pooling", ["first", "avg"])
@pytest.mark.usual("first-*", "avg-means", "avg-next token", "avg-lstm*")
def test_settings_mean_what_they_mean_in_gliclass(settings, pooling, tmp_path) -> None:
    check(save_gliclass(tmp_path / "model", pooling_strategy=pooling, **settings))


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.usual("True-modernbert", "False-bert")
def test_each_family_of_encoders_runs(family, is_first, tmp_path) -> None:
    check(save_gliclass(tmp_path / "model", family, prompt_first=is_first))


def test_a_size_that_is_not_given_is_that_of_the_encoder(tmp_path) -> None:
    folder = save_gliclass(tmp_path / "model", prompt_first=True)
    with qdqbert.load(folder, precision="float") as model:
        expected = model(TEXTS, LABELS)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"vocab_size": -1}))
    with qdqbert.load(folder, precision="float") as model:
        assert model(TEXTS, LABELS) == expected


@pytest.mark.slow
@pytest.mark.parametrize("scorer", SCORERS)
def test_the_definitions_are_those_of_the_package(scorer, tmp_path) -> None:
    gliclass = pytest.importorskip("gliclass")
    settings = {"scorer_type": scorer, "pooling_strategy": SCORERS[scorer][0]}
    for more in SETTINGS.values() if scorer != "cross-attn" else [{"extract_text_features": True}]:
        folder = save_gliclass(tmp_path / f"{len(list(tmp_path.iterdir()))}", **settings, **more)
        config = gliclass.GLiClassModelConfig(
            encoder_model="none", **json.loads((folder / "config.json").read_text())
        )
        model = gliclass.GLiClassModel.from_pretrained(folder, config=config)
        pipeline = gliclass.ZeroShotClassificationPipeline(
            model, str(folder), device="cpu", progress_bar=False, max_length=64
        ).pipe
        for text, expected in zip(TEXTS, reference(folder, TEXTS, LABELS), strict=True):
            inputs = pipeline.prepare_inputs([text], LABELS, same_labels=True)
            with torch.no_grad():
                found = model(**inputs, max_num_classes=len(LABELS)).logits[0]
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gliclass") / "model"
    return save_gliclass(path, scorer_type="mlp", prompt_first=True)


@pytest.fixture(scope="module")
def model(folder):
    with qdqbert.load(folder) as loaded:
        yield loaded


def test_int8_is_close_to_float_and_does_not_depend_on_other_texts(model, folder) -> None:
    found = model(TEXTS, LABELS)
    assert found == [model(text, LABELS) for text in TEXTS]
    for logits, each in zip(reference(folder, TEXTS, LABELS), found, strict=True):
        wanted = dict(zip(LABELS, logits.softmax(dim=-1).tolist(), strict=True))
        scores = dict(zip(each["labels"], each["scores"], strict=True))
        assert scores == pytest.approx(wanted, abs=0.02)


def test_the_model_is_that_of_the_task(model, folder) -> None:
    assert isinstance(model, qdqbert.ZeroShotClassifier)
    assert model.task == "zero-shot-classification"
    assert "scorer='mlp'" in repr(model)
    with qdqbert.load(folder, task="zero-shot-classification") as named:
        assert named(TEXTS, LABELS) == model(TEXTS, LABELS)
    with pickle.loads(pickle.dumps(model)) as again:
        assert again(TEXTS, LABELS) == model(TEXTS, LABELS)


def test_decisions_are_made_of_the_same_scores(model) -> None:
    (scores,) = model(TEXTS[:1], LABELS)
    found = model.decide(TEXTS[0], LABELS)
    assert found["choice"] == scores["labels"][0]
    assert found["probabilities"] == pytest.approx(
        dict(zip(scores["labels"], scores["scores"], strict=True))
    )


def test_a_single_label_is_certain_unless_it_is_scored_alone(model, folder) -> None:
    assert model(TEXTS[0], ["rain"])["scores"] == [1.0]
    (score,) = model(TEXTS[0], ["rain"], multi_label=True)["scores"]
    (logits,) = reference(folder, TEXTS[:1], ["rain"])
    assert score == pytest.approx(float(logits.sigmoid()), abs=0.02)


def test_a_run_takes_labels(folder, model, write_file, tmp_path) -> None:
    data, output = write_file("texts.txt", "\n".join(TEXTS)), tmp_path / "out.jsonl"
    qdqbert.run(str(folder), str(data), str(output), labels=LABELS)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["label"] for row in rows] == [each["labels"][0] for each in model(TEXTS, LABELS)]


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_text_is_cut(is_first, tmp_path) -> None:
    folder = save_gliclass(tmp_path / "model", prompt_first=is_first)
    with qdqbert.load(folder, precision="float") as model:
        long = model("the cat " * 200, LABELS)
        # 64 tokens are read: 4 marks of labels, 9 words of them, the mark after them, and two more.
        count = 64 - (4 + 9 + 1) - 2
        short = model(" ".join(["the cat"] * (count // 2)), LABELS)
        assert model.truncated_inputs == 1
        assert long["scores"] == pytest.approx(short["scores"], abs=1e-5)


def test_marks_in_a_text_are_not_labels(model) -> None:
    assert len(model("a <<LABEL>> dog <<SEP>>", LABELS)["labels"]) == len(LABELS)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["a<<LABEL>>b"], {}, "stand between labels"),
        (["the cat " * 60], {}, "Pass fewer or shorter labels"),
        (LABELS, {"hypothesis_template": "It is {}."}, "is for classifiers of entailment"),
        (LABELS, {"entailment_label": "a"}, "is for classifiers of entailment"),
        (LABELS, {"task_name": "a"}, "is for models of gliner2"),
        ({"topic": ["cats", "dogs"]}, {}, "has to be a list of labels, got dict"),
        (["a", None], {}, "has to be labels, .* got NoneType None"),
    ],
)
def test_labels_that_cannot_be_read_are_refused(model, labels, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        model(TEXTS, labels, **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture_type": "bi-encoder"}, "architecture_type='bi-encoder'"),
        ({"architecture_type": "encoder-decoder"}, "architecture_type='encoder-decoder'"),
        (
            {"use_lstm": True},
            "copy/model.safetensors' has no tensor `lstm.lstm.weight_hh_l0` that fits `use_lstm`",
        ),
        ({"use_calibrator": True}, "copy/model.safetensors' has no .* that fits `use_calibrator`"),
        ({"squeeze_layers": True}, "the states of all layers"),
        ({"encoder_layer_id": 1}, "the states of another layer"),
        ({"use_segment_embeddings": True}, "embeddings of the segments"),
        ({"scorer_type": "decoder-kv"}, "scorer_type"),
        ({"scorer_type": "cross-attn"}, "do not fit"),
        ({"encoder_config": None}, "no `encoder_config`"),
        ({"encoder_config": {"model_type": "qwen2"}}, "llm2vec"),
        ({"scorer_type": "hopfield"}, "has no tensor .* that fits `scorer_type`"),
        ({"class_token_index": 7}, "'<<LABEL>>' the id 7 .*, and the tokenizer gives it the id"),
        ({"text_token_index": -1}, "'<<SEP>>' the id"),
    ],
)
def test_other_layouts_are_refused_by_name(folder, settings, message, tmp_path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = json.loads((copy / "config.json").read_text()) | settings
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        qdqbert.load(copy)


def test_transformers_has_no_pipeline_for_it(folder) -> None:
    with pytest.raises(UserInputError, match="transformers has no pipeline"):
        transformers.pipeline(folder)


def by_label(model) -> dict[str, float]:
    found = model(TEXTS[0], LABELS)
    return dict(zip(found["labels"], found["scores"], strict=True))


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> tuple[Path, Path]:
    """Return files with labeled texts."""
    rng = random.Random(0)
    found = tmp_path_factory.mktemp("rows") / "train.csv", tmp_path_factory.mktemp("rows") / "d.csv"
    for path, count in zip(found, (24, 30), strict=True):
        lines = [f"{' '.join(rng.choices(WORDS, k=6))},{rng.choice(LABELS)}" for _ in range(count)]
        path.write_text("\n".join(["text,label", *lines]))
    return found


@pytest.fixture(scope="module")
def quantized(folder, rows, tmp_path_factory):
    """Return a quantized folder, and the report."""
    output = tmp_path_factory.mktemp("gliclass") / "int8"
    train, data = map(str, rows)
    report = qdqbert.quantize(
        folder, output, calibration_data=train, eval_data=data, targets="native", benchmark=False
    )
    return output, report


def test_quantize_measures_the_choice_among_the_labels_of_the_data(quantized, folder, rows) -> None:
    output, report = quantized
    assert report.task == "zero-shot-classification"
    assert [each.name for each in report.float_metrics][:3] == ["accuracy", "f1_macro", "ece"]
    (target,) = report.targets
    assert target.fidelity.decisions == 30
    assert target.fidelity.sqnr_db > 20
    texts, wanted = zip(
        *(line.split(",") for line in rows[1].read_text().splitlines()[1:]), strict=True
    )
    labels = sorted(LABELS)
    best = [labels[int(each.argmax())] for each in reference(folder, list(texts), labels)]
    right = sum(one == other for one, other in zip(best, wanted, strict=True))
    assert report.float_metrics[0].value == pytest.approx(100 * right / 30)
    with qdqbert.load(output) as found, qdqbert.load(folder, precision="float") as model:
        assert found.target == "native"
        assert found.facts["decision_temperature"] != 1
        assert by_label(found) == pytest.approx(by_label(model), abs=0.02)


def test_evaluate_reads_the_folder_and_the_checkpoint(quantized, folder, rows) -> None:
    data = str(rows[1])
    found = qdqbert.evaluate(quantized[0], data=data, reference=folder)
    assert found.metrics == quantized[1].targets[0].metrics
    assert found.reference_metrics == quantized[1].float_metrics
    rounded = qdqbert.evaluate(folder, data=data, engine="native")
    assert rounded.target == "native-dynamic"
    assert rounded.metrics[0].examples == 30


def test_what_does_not_fit_its_layers_is_refused(quantized, folder, rows, tmp_path) -> None:
    output, (train, data) = quantized[0], map(str, rows)
    calls = {
        "for `zero-shot-classification`": lambda: qdqbert.quantize(
            folder, tmp_path / "other", task="text-classification"
        ),
        "whose settings have ids of tokens": lambda: qdqbert.quantize(
            folder, tmp_path / "other", keep_scripts=["latin"]
        ),
        "`hypothesis_template=.* does not apply": lambda: qdqbert.quantize(
            folder,
            tmp_path / "other",
            task_options=qdqbert.TaskOptions(hypothesis_template="It is {}."),
        ),
        "which is a model for": lambda: qdqbert.evaluate(
            output, data=data, task="text-classification"
        ),
        "Train it with gliclass": lambda: qdqbert.train(
            folder, output=tmp_path / "other", train_data=train
        ),
        "no format of `export` has a place for": lambda: qdqbert.export(
            output, to="transformers-js", output=tmp_path / "other"
        ),
    }
    for message, call in calls.items():
        with pytest.raises(UserInputError, match=message):
            call()
