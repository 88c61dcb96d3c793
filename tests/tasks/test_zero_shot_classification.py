"""Zero-shot classification of labeled data: `quantize`, `evaluate` and `run`."""

from __future__ import annotations

import contextlib
import json
import shutil

import numpy as np
import pytest
import transformers

import qdqbert
from qdqbert import Quantizers, TaskOptions
from qdqbert.cli import main
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.rows.data import Columns
from qdqbert.tasks.zero_shot_classification import ZERO_SHOT_CLASSIFICATION as TASK

NAME = "zero-shot-classification"
CLASSES = ["contradiction", "neutral", "entailment"]
TEXTS = ["the cat sat", "a dog and a cat", "music in the night", "rain", "the book", "the rain"]
LABELS = ["the cat", "a dog", "music", "rain", "music", "rain"]
WANTED = ["music", "rain"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("zero-shot")


@pytest.fixture(scope="module")
def nli(folder, save_tiny):
    names = {
        "id2label": dict(enumerate(CLASSES)),
        "label2id": {c: i for i, c in enumerate(CLASSES)},
    }
    kind = transformers.AutoModelForSequenceClassification
    return save_tiny(folder / "nli", "bert", kind, num_labels=3, **names)


@pytest.fixture(scope="module")
def data(folder):
    path = folder / "data.jsonl"
    rows = zip(TEXTS, LABELS, strict=True)
    path.write_text("".join(json.dumps({"text": text, "label": x}) + "\n" for text, x in rows))
    return path


@pytest.fixture(scope="module")
def quantized(folder, nli, data):
    """A folder whose weights stay in float, with a template of its own."""
    qdqbert.quantize(
        str(nli),
        folder / "quantized",
        task=NAME,
        calibration_data=str(data),
        targets=("onnxruntime",),
        task_options=TaskOptions(hypothesis_template="It is about {}."),
        quantizers=Quantizers(quant_disable=True),
        benchmark=False,
    )
    return folder / "quantized"


@pytest.fixture(scope="module")
def pipeline(nli):
    return transformers.pipeline(NAME, model=str(nli))


def read(path):
    return TASK.read(str(path), columns=Columns(), max_examples=None)


def test_the_labels_of_the_data_are_the_candidates(data) -> None:
    found = read(data).examples
    assert {each.candidates for each in found} == {("a dog", "music", "rain", "the cat")}


def test_texts_without_labels_have_no_candidates(write_file) -> None:
    assert read(write_file("texts.txt", "a\nb\n")).examples[0].candidates == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1,sentence2,label\na,b,c\n", "task='text-classification'"),
        ("text,label\na,1\nb,0\n", "are numbers"),
    ],
)
def test_data_that_name_no_labels_are_refused(write_file, text, message) -> None:
    with pytest.raises(DataFileError, match=message):
        read(write_file("data.csv", text))


def test_a_quantized_folder_keeps_the_template(quantized, pipeline) -> None:
    expected = pipeline(TEXTS, candidate_labels=WANTED, hypothesis_template="It is about {}.")
    with qdqbert.load(quantized) as model:
        assert type(model) is qdqbert.ZeroShotClassifier
        for ours, theirs in zip(model(TEXTS, WANTED), expected, strict=True):
            assert ours["labels"] == theirs["labels"]
            np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=1e-5)


def test_accuracy_is_that_of_the_pipeline(nli, data, pipeline) -> None:
    candidates = sorted(set(LABELS))
    found = pipeline(TEXTS, candidate_labels=candidates)
    right = [each["labels"][0] == label for each, label in zip(found, LABELS, strict=True)]
    report = qdqbert.evaluate(str(nli), str(data), task=NAME)
    assert report.metrics[0].name == "accuracy"
    assert report.metrics[0].value == pytest.approx(100 * sum(right) / len(right))


def test_a_model_is_compared_on_built_in_texts(quantized, nli) -> None:
    report = qdqbert.evaluate(str(quantized), reference=str(nli))
    assert report.fidelity is not None
    assert report.fidelity.flips_percent == 0


def test_other_models_are_refused_before_they_are_quantized(nli, tmp_path) -> None:
    copy = shutil.copytree(nli, tmp_path / "other")
    config = json.loads((copy / "config.json").read_text())
    config["id2label"] = {"0": "bad", "1": "so so", "2": "good"}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserInputError, match="natural language inference"):
        qdqbert.quantize(str(copy), tmp_path / "out", task=NAME)


def rows_of(model, data, output, **options):
    qdqbert.run(str(model), str(data), str(output), **options)
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.parametrize("is_quantized", [True, False], ids=["folder", "checkpoint"])
def test_a_run_takes_the_labels(quantized, nli, data, tmp_path, is_quantized) -> None:
    folder = quantized if is_quantized else nli
    rows = rows_of(folder, data, tmp_path / "out.jsonl", labels=WANTED)
    with qdqbert.load(folder, task=NAME) as model:
        expected = model(TEXTS, WANTED)
    assert [row["predicted_label"] for row in rows] == [each["labels"][0] for each in expected]
    assert [row["score"] for row in rows] == [each["scores"][0] for each in expected]


def test_a_run_of_several_labels_writes_lists(nli, data, tmp_path) -> None:
    options = {"labels": "music, rain,a dog", "multi_label": True}
    rows = rows_of(nli, data, tmp_path / "out.jsonl", **options)
    assert sorted(rows[0]["labels"]) == ["a dog", "music", "rain"]
    limit = sorted(rows[0]["scores"])[1]
    some = rows_of(nli, data, tmp_path / "some.jsonl", threshold=limit, **options)
    assert some[0]["labels"] == rows[0]["labels"][:1]


def test_the_command_line_has_labels_with_commas(nli, data, tmp_path) -> None:
    output = tmp_path / "out.jsonl"
    arguments = ["run", str(nli), "--input", str(data), "--output", str(output)]
    with contextlib.suppress(SystemExit):
        main([*arguments, "--labels", "music, rain", "--labels", "a dog"])
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    expected = rows_of(nli, data, tmp_path / "same.jsonl", labels=["music", "rain", "a dog"])
    assert rows == expected


def test_a_run_needs_labels_and_a_model_that_takes_them(quantized, checkpoints, data, tmp_path):
    with pytest.raises(UserInputError, match="`labels` is missing"):
        qdqbert.run(str(quantized), str(data), str(tmp_path / "out.jsonl"))
    with pytest.raises(UserInputError, match=r"^Labels of a call, .* natural language inference"):
        qdqbert.run(
            str(checkpoints("classifier")), str(data), str(tmp_path / "out.jsonl"), labels=WANTED
        )
    with pytest.raises(UserInputError, match=r"`labels=.*does not apply"):
        qdqbert.run(
            str(checkpoints("sentence")), str(data), str(tmp_path / "out.jsonl"), labels=WANTED
        )
