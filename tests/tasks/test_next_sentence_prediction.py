from __future__ import annotations

import numpy as np
import pytest

from qdqbert.encoding import Batch, Encoded
from qdqbert.errors import DataFileError
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, Example
from qdqbert.tasks.next_sentence_prediction import NEXT_SENTENCE_PREDICTION as TASK
from qdqbert.tasks.task import Features, TaskOptions

OPTIONS = TaskOptions()
# Predictions 0, 1, 1.
ROWS = list(np.array([[2, 1], [0, 3], [-2, -1]], np.float32))


def features(*labels: str | None) -> Features:
    examples = tuple(Example(text="a", text_pair="b", label=label) for label in labels)
    return Features(examples=examples, encoded=Encoded(rows=(), padding={}, truncated=0))


def test_the_task_is_listed_under_its_name() -> None:
    assert TASKS["next-sentence-prediction"] is TASK


def test_pairs_are_read_from_a_table(write_file) -> None:
    path = write_file("pairs.csv", "sentence1,sentence2,label\na,b,0\nc,d,1\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=1)
    assert dataset.examples == (Example(text="a", text_pair="b", label="0"),)


def test_data_without_second_texts_names_the_option(write_file) -> None:
    path = write_file("texts.csv", "text,label\na,0\n")
    with pytest.raises(DataFileError, match="Name the second with `--text-pair-column`"):
        TASK.read(str(path), columns=Columns(), max_examples=None)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        *((name, 0) for name in ("0", "0.0", "next", "IS_NEXT", "isNext", " true ")),
        *((name, 1) for name in ("1", "1.0", "random", "not_next", "notNext", "False")),
    ],
)
def test_class_0_says_that_the_second_text_follows(label: str, expected: int) -> None:
    assert TASK.labels(features(label), {}) == [{"labels": expected}]


@pytest.mark.parametrize("label", ["2", "-1", "maybe"])
def test_other_labels_are_refused(label: str) -> None:
    with pytest.raises(DataFileError, match=f"Label '{label}' must be 0, 'next' or 'true'"):
        TASK.labels(features(label), {})


def test_missing_label_is_refused() -> None:
    with pytest.raises(DataFileError, match="no labels to compare with"):
        TASK.metrics(ROWS, features("0", None, "1"), {}, OPTIONS)


def test_accuracy_by_hand() -> None:
    (metric,) = TASK.metrics(ROWS, features("next", "next", "random"), {}, OPTIONS)
    assert (metric.name, metric.examples) == ("accuracy", 3)
    assert metric.value == pytest.approx(200 / 3)


def test_answers_are_classes() -> None:
    assert TASK.decisions(ROWS, features("0", "0", "0"), OPTIONS) == [0, 1, 1]
    assert TASK.class_names(()) is None


def test_rows_are_the_logits() -> None:
    batch = Batch(indices=(0, 1, 2), inputs={})
    rows = TASK.rows({"logits": np.stack(ROWS)}, batch, features("0", "0", "0"))
    np.testing.assert_array_equal(rows, ROWS)
