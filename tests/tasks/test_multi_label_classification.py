"""Texts with any number of classes: labels, metrics, and all commands from end to end."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
import transformers

import qdqbert
from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION as TASK
from qdqbert.tasks.multi_label_classification import labels_of
from qdqbert.tasks.task import Features, Outcome
from task_files import sentence

ID2LABEL = {0: "Food", 1: "room, view", 2: "staff"}


def features(*labels: str | None) -> Features:
    examples = tuple(Example(text="a", label=label) for label in labels)
    return Features(examples=examples, encoded=Encoded(inputs=(), padding={}, truncated=0))


@pytest.mark.parametrize(
    ("label", "names"),
    [
        (None, ()),
        ("[]", ()),
        ("a", ("a",)),
        ("a|b, c", ("a", "b, c")),
        ("a; b ;", ("a", "b")),
        ("2,0", ("2", "0")),
        ('["a, b", 3]', ("a, b", "3")),
    ],
)
def test_labels_are_read_from_lists_and_cells(label, names) -> None:
    assert labels_of(Example(text="a", label=label)) == names


@pytest.mark.parametrize("label", ['["a"', '[["a"]]', "[null]"])
def test_malformed_lists_are_refused(label) -> None:
    with pytest.raises(DataFileError, match="Labels must be a list of strings or numbers"):
        labels_of(Example(text="a", label=label))


def test_lists_in_json_lines_are_labels(write_file) -> None:
    rows = [{"text": "a", "labels": ["staff", "food"]}, {"text": "b", "labels": []}]
    path = write_file("a.jsonl", "\n".join(map(json.dumps, rows)))
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    TASK.check_labels(dataset, ID2LABEL)
    assert TASK.class_names(dataset) == ["food", "staff"]


def test_an_unknown_label_is_reported_with_its_row(write_file) -> None:
    path = write_file("a.csv", "text,label\na,0|2\nb,\nc,Food|music\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    with pytest.raises(DataFileError, match=r"Line 4 of .*Label 'music' is not one of the model's"):
        TASK.check_labels(dataset, ID2LABEL)


def test_scores_by_hand() -> None:
    # Sets {0, 2}, {}, {1}, {0}; labelled {0, 2}, {1}, {1}, {0, 1}.
    predictions = list(np.array([[1, -1, 2], [-1, -1, -1], [-1, 1, 0], [1, -1, -2]], np.float32))
    scored = features("food|2", "room, view", "1", '["Food", "room, view"]')
    found = {each.name: each.value for each in TASK.metrics(Outcome(predictions, scored, ID2LABEL))}
    # True positives 4, predicted 4, labelled 6. Each class: 2/2 and 2/2, 1/1 and 1/3, 1/1 and 1/1.
    assert found == pytest.approx(
        {"f1_micro": 80, "f1_macro": 100 * (1 + 0.5 + 1) / 3, "subset_accuracy": 50}
    )
    decisions = TASK.decisions(Outcome(predictions, scored))
    assert decisions == [({0, 2},), (set(),), ({1},), ({0},)]
    assert TASK.labels(scored, ID2LABEL)[3]["labels"].tolist() == [1, 1, 0]


def test_a_class_without_any_example_scores_0() -> None:
    predictions = [np.array([1, -1, -1], np.float32)]
    found = TASK.metrics(Outcome(predictions, features("0"), ID2LABEL))
    assert [each.value for each in found] == pytest.approx([100, 100 / 3, 100])


@pytest.mark.slow
def test_a_model_is_trained_quantized_evaluated_and_run(save_tiny, tmp_path) -> None:
    rng = random.Random(0)
    names = ("cat", "dog", "river")
    encoder = save_tiny(tmp_path / "encoder", "bert", num_hidden_layers=1)
    texts = [sentence(rng) for _ in range(64)]
    # A text has the classes whose names it contains.
    rows = [{"text": text, "labels": [each for each in names if each in text]} for text in texts]
    for name, part in (("train.jsonl", rows[:40]), ("dev.jsonl", rows[40:])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, part)))
    report = qdqbert.train(
        encoder,
        tmp_path / "model",
        train_data=tmp_path / "train.jsonl",
        eval_data=tmp_path / "dev.jsonl",
        task="text-classification",
        distillation=qdqbert.Distillation(teacher=None),
        optimization=qdqbert.Optimization(learning_rate=1e-3, epochs=1),
    )
    assert [each.name for each in report.after] == ["f1_micro", "f1_macro", "subset_accuracy"]
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    qdqbert.quantize(
        tmp_path / "model",
        tmp_path / "int8",
        calibration_data=tmp_path / "train.jsonl",
        calibration=qdqbert.Calibration(samples=16),
        targets=("onnxruntime",),
        quantizers=qdqbert.Quantizers(quant_disable=True),
        benchmark=False,
    )
    found = qdqbert.evaluate(
        tmp_path / "int8", tmp_path / "dev.jsonl", reference=tmp_path / "model", allow_leakage=True
    )
    assert found.fidelity.decisions == 24
    assert found.fidelity.flips_percent == 0
    held = [row["text"] for row in rows[40:]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    auto_class = transformers.AutoModelForSequenceClassification
    model = auto_class.from_pretrained(tmp_path / "model").eval()
    with torch.inference_mode():
        logits = model(**tokenizer(held, padding=True, return_tensors="pt")).logits
    sets = [{names[i] for i in range(3) if row[i] > 0} for row in logits.tolist()]
    exact = [one == set(row["labels"]) for one, row in zip(sets, rows[40:], strict=True)]
    assert found.metrics[2].value == pytest.approx(100 * np.mean(exact))
    with qdqbert.load(tmp_path / "int8") as classifier:
        answers = classifier(held, threshold=0.5)
    assert [{each["label"] for each in one} for one in answers] == sets


def read_json(write_file, *labels):
    rows = [json.dumps({"text": "a", "labels": each}) for each in labels]
    path = write_file("a.jsonl", "\n".join(rows))
    return TASK.read(str(path), columns=Columns(), max_examples=None)


def classes(dataset, id2label=ID2LABEL) -> list[list[float]]:
    made = Features(examples=dataset.examples, encoded=Encoded(inputs=(), padding={}, truncated=0))
    return [each["labels"].tolist() for each in TASK.labels(made, id2label)]


def test_numbers_of_classes_are_replaced_by_names(write_file) -> None:
    dataset = TASK.read_labels(read_json(write_file, [2, 0], [], [1]), ID2LABEL)
    assert classes(dataset) == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    (notice,) = dataset.notices
    assert "numbers of classes: '0' is 'Food', '1' is 'room, view', '2' is 'staff'" in notice


def test_numbers_in_names_are_read_as_such(write_file) -> None:
    names = {0: "goal 1", 1: "goal 2", 2: "goal 3"}
    dataset = TASK.read_labels(read_json(write_file, [3, 1], [2]), names)
    assert classes(dataset, names) == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("values", [(0.0, 1.0), (0, 1), (False, True)])
def test_lists_with_a_value_for_each_class_are_indicators(write_file, values) -> None:
    no, yes = values
    dataset = read_json(write_file, [yes, no, yes], [no, no, no], [no, yes, no])
    named = TASK.read_labels(dataset, ID2LABEL)
    assert classes(named) == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert named.notices == ("Labels are read as 0 or 1 for each class, in their order.",)
    assert TASK.class_names(dataset) == ["LABEL_0", "LABEL_1", "LABEL_2"]
