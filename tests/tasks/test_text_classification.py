from __future__ import annotations

import numpy as np
import pytest

from qdqbert.errors import DataFileError
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Example
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION as TASK

ID2LABEL = {0: "Negative", 1: "Neutral", 2: "Positive"}


def examples(*labels: str | None) -> list[Example]:
    return [Example(text="a", label=label) for label in labels]


def test_the_task_is_listed_under_its_name() -> None:
    assert TASKS["text-classification"] is TASK


def test_both_texts_of_a_pair_are_read_together() -> None:
    assert TASK.texts([Example(text="a", text_pair="b")]) == (["a"], ["b"])
    assert TASK.texts(examples("0", "1")) == (["a", "a"], None)


def test_a_row_is_the_logits() -> None:
    logits = np.ones((2, 3))
    assert TASK.rows({"logits": logits}, {}) is logits


@pytest.mark.parametrize(
    "labels",
    [
        ("Negative", "Positive", "Neutral", "Positive"),
        ("negative", "POSITIVE", " neutral ", "pOsItIvE"),
        ("0", "2", "1", "2"),
        ("0.0", "2.0", "1.0", "2"),
        ("0", "positive", "Neutral", "2.0"),
    ],
    ids=["names", "any-case", "numbers", "numbers-as-pandas-writes-them", "mixed"],
)
def test_accuracy_by_hand(labels) -> None:
    # Predictions 0, 2, 2, 2: the third is wrong.
    rows = np.array([[9, 1, 1], [1, 2, 3], [0, 0, 1], [-3, -2, -1]], np.float32)
    (metric,) = TASK.metrics(rows, examples(*labels), ID2LABEL)
    assert (metric.name, metric.value, metric.examples) == ("accuracy", 75.0, 4)


def test_a_name_that_looks_like_a_number_is_a_name() -> None:
    (metric,) = TASK.metrics(np.array([[1.0, 0.0]]), examples("1"), {0: "1", 1: "0"})
    assert metric.value == 100


@pytest.mark.parametrize("label", ["3", "-1", "excellent", "1.5"])
def test_an_unknown_label_lists_those_of_the_model(label) -> None:
    known = "0 or 'Negative', 1 or 'Neutral', 2 or 'Positive'"
    with pytest.raises(DataFileError, match=f"{label!r} is not one of the model's: {known}"):
        TASK.metrics(np.ones((1, 3)), examples(label), ID2LABEL)


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(DataFileError, match="no labels to compare with"):
        TASK.metrics(np.ones((1, 3)), examples(None), ID2LABEL)


def test_one_output_is_scored_by_correlation() -> None:
    rows = np.array([[0.1], [0.9], [0.5]], np.float32)
    spearman, pearson = TASK.metrics(rows, examples("1", "3", "2.5"), {0: "LABEL_0"})
    assert spearman.value == pytest.approx(100, abs=1e-9)  # float64 rounding
    expected = 100 * np.corrcoef([0.1, 0.9, 0.5], [1, 3, 2.5])[0, 1]
    # The rows are float32.
    assert pearson.value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("columns", "kind"), [(1, "score"), (2, "classes"), (5, "classes")])
def test_rows_are_classes_unless_there_is_one_output(columns, kind) -> None:
    assert TASK.kind(np.ones((2, columns), np.float32)) == kind
