from __future__ import annotations

import numpy as np
import pytest

from qdqbert.errors import DataFileError
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Example
from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION as TASK

PAIRS = [
    Example(text="a", text_pair="b", label="5"),
    Example(text="c", text_pair="d", label="0.5"),
    Example(text="e", text_pair="f", label="3"),
]


def test_the_task_is_listed_under_its_name() -> None:
    assert TASKS["feature-extraction"] is TASK


def test_each_text_of_a_pair_is_embedded_alone() -> None:
    assert TASK.texts(PAIRS) == (["a", "c", "e", "b", "d", "f"], None)
    assert TASK.texts([Example(text="a")]) == (["a"], None)


def test_a_row_is_the_sentence_embedding_where_there_is_one() -> None:
    embedding = np.ones((2, 3), np.float32)
    outputs = {"last_hidden_state": np.zeros((2, 4, 3)), "sentence_embedding": embedding}
    assert TASK.rows(outputs, {"attention_mask": np.ones((2, 4))}) is embedding


def test_a_row_of_a_plain_encoder_is_the_mean_over_text() -> None:
    states = np.array([[[1, 2], [3, 4], [100, 100]], [[5, 6], [100, 100], [100, 100]]])
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    rows = TASK.rows({"last_hidden_state": states}, {"attention_mask": mask})
    assert rows.tolist() == [[2, 3], [5, 6]]


def test_correlations_of_cosines_by_hand() -> None:
    # Cosines 1, 0 and 0.6 stand in the order of the scores 5, 0.5 and 3.
    rows = np.array([[2, 0], [1, 0], [1, 0], [1, 0], [0, 3], [3, 4]], np.float32)
    spearman, pearson = TASK.metrics(rows, PAIRS, {})
    assert (spearman.name, spearman.examples) == ("spearman", 3)
    assert spearman.value == pytest.approx(100, abs=1e-9)  # float64 rounding
    expected = 100 * np.corrcoef([1, 0, 0.6], [5, 0.5, 3])[0, 1]
    assert pearson.value == pytest.approx(expected, abs=1e-9)  # float64 rounding


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([Example(text="a", label="1")], "one text a row. Name the second"),
        ([Example(text="a", text_pair="b")], "no scores to compare with"),
        ([Example(text="a", text_pair="b", label="good")], "'good' is no number"),
    ],
    ids=["no-pair", "no-score", "not-a-number"],
)
def test_data_without_scored_pairs_is_refused(examples, message) -> None:
    with pytest.raises(DataFileError, match=message):
        TASK.metrics(np.ones((2 * len(examples), 2)), examples, {})


def test_a_row_is_an_embedding() -> None:
    assert TASK.kind(np.ones((2, 3), np.float32)) == "embedding"
