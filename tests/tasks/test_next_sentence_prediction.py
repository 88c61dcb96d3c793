from __future__ import annotations

import numpy as np
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.tasks.next_sentence_prediction import NEXT_SENTENCE_PREDICTION as TASK
from qdqbert.tasks.task import Features, Outcome

# Decisions 0, 1, 1.
PREDICTIONS = list(np.array([[2, 1], [0, 3], [-2, -1]], np.float32))


def features(*labels: str | None) -> Features:
    examples = tuple(Example(text="a", text_pair="b", label=label) for label in labels)
    return Features(examples=examples, encoded=Encoded(inputs=(), padding={}, truncated=0))


def test_pairs_are_read_from_a_table(write_file) -> None:
    path = write_file("pairs.csv", "sentence1,sentence2,label\na,b,0\nc,d,1\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=1)
    assert dataset.examples == (Example(text="a", text_pair="b", label="0"),)


def test_data_without_second_texts_names_the_option(write_file) -> None:
    path = write_file("texts.csv", "text,label\na,0\n")
    with pytest.raises(DataFileError, match="Name the second one with `text_pair_column`"):
        TASK.read(str(path), columns=Columns(), max_examples=None)


def test_class_0_means_that_the_second_text_follows() -> None:
    follows = ("0", "0.0", "next", "IS_NEXT", "isNext", " true ")
    random = ("1", "1.0", "random", "not_next", "notNext", "False")
    assert TASK.labels(features(*follows), {}) == [{"labels": 0}] * 6
    assert TASK.labels(features(*random), {}) == [{"labels": 1}] * 6


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("2", "Label '2' must be 0, 'next' or 'true'"),
        ("maybe", "Label 'maybe' must be 0, 'next' or 'true'"),
        ("", "The label is blank"),
    ],
    ids=["number", "word", "blank"],
)
def test_unknown_label_is_reported_with_its_row(write_file, label: str, message: str) -> None:
    path = write_file("pairs.csv", f"text,text2,label\na,b,0\na,b,{label}\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    with pytest.raises(DataFileError, match=f"^Line 3 of `.*`, column 'label': {message}"):
        TASK.check_labels(dataset, {})


def test_data_without_labels_are_refused(write_file) -> None:
    path = write_file("pairs.csv", "text,text2\na,b\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    with pytest.raises(DataFileError, match="no column has a name that is known to hold labels"):
        TASK.check_labels(dataset, {})


def test_accuracy_by_hand() -> None:
    (metric,) = TASK.metrics(Outcome(PREDICTIONS, features("next", "next", "random")))
    assert (metric.name, metric.examples) == ("accuracy", 3)
    assert metric.value == pytest.approx(200 / 3)


def test_decisions_are_classes() -> None:
    assert TASK.decisions(Outcome(PREDICTIONS, features("0", "0", "0"))) == [(0,), (1,), (1,)]
    assert TASK.class_names is None


def test_how_numbers_and_truth_values_are_read_is_said(write_file) -> None:
    path = write_file("a.csv", "text,text_pair,label\na,b,0\nc,d,TRUE\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    (notice,) = TASK.read_labels(dataset, {}).notices
    assert notice.endswith("'0' is 'is_next', 'true' is 'is_next'.")
    path = write_file("b.csv", "text,text_pair,label\na,b,next\nc,d,random\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    assert TASK.read_labels(dataset, {}) == dataset
