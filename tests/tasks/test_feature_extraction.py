from __future__ import annotations

import numpy as np
import pytest

from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.encoding import Batch, Encoded
from qdqbert.errors import DataFileError
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, Example
from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION as TASK
from qdqbert.tasks.task import Features, TaskOptions

OPTIONS = TaskOptions()

PAIRS = [
    Example(text="a", text_pair="b", label="5"),
    Example(text="c", text_pair="d", label="0.5"),
    Example(text="e", text_pair="f", label="3"),
]


@pytest.fixture(scope="module")
def tokenizer(checkpoints):
    return load_checkpoint(str(checkpoints("bert"))).tokenizer


def features(examples: list[Example], rows: int = 0) -> Features:
    encoded = Encoded(rows=({},) * rows, padding={}, truncated=0)
    return Features(examples=tuple(examples), encoded=encoded)


def batch(mask: list[list[int]]) -> Batch:
    return Batch(indices=tuple(range(len(mask))), inputs={"attention_mask": np.array(mask)})


def test_the_task_is_listed_under_its_name() -> None:
    assert TASKS["feature-extraction"] is TASK


def test_texts_and_scores_are_read_from_a_table(write_file) -> None:
    path = write_file("pairs.csv", "sentence1,sentence2,score\na,b,5\nc,d,0.5\ne,f,3\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=2)
    assert dataset.examples == tuple(PAIRS[:2])


@pytest.mark.parametrize(
    ("examples", "texts"),
    [(PAIRS, "acebdf"), ([Example(text="a")], "a")],
    ids=["pairs", "one-text"],
)
def test_each_text_of_a_pair_is_embedded_alone(tokenizer, examples, texts) -> None:
    made = TASK.encode(
        examples, tokenizer, input_names=("input_ids",), max_length=64, options=OPTIONS
    )
    assert [row["input_ids"].tolist() for row in made.encoded.rows] == [
        tokenizer(text)["input_ids"] for text in texts
    ]
    assert (made.examples, made.notices) == (tuple(examples), ())


def test_both_texts_of_a_pair_count_as_cut(tokenizer) -> None:
    examples = [Example(text="cat " * 9, text_pair="dog " * 9), Example(text="a", text_pair="b")]
    made = TASK.encode(
        examples, tokenizer, input_names=("input_ids",), max_length=5, options=OPTIONS
    )
    assert made.notices == ("2 of 4 texts were longer than 5 tokens and were cut.",)


def test_a_row_is_the_sentence_embedding_where_there_is_one() -> None:
    embedding = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = {
        "last_hidden_state": np.zeros((2, 4, 3), np.float32),
        "sentence_embedding": embedding,
    }
    rows = TASK.rows(outputs, batch([[1] * 4] * 2), features(PAIRS))
    assert [row.tolist() for row in rows] == embedding.tolist()


def test_a_row_of_a_plain_encoder_is_the_mean_over_text() -> None:
    states = np.array([[[1, 2], [3, 4], [100, 100]], [[5, 6], [100, 100], [100, 100]]], np.float32)
    masked = batch([[1, 1, 0], [1, 0, 0]])
    rows = TASK.rows({"last_hidden_state": states}, masked, features(PAIRS))
    assert [row.tolist() for row in rows] == [[2, 3], [5, 6]]
    assert {row.dtype for row in rows} == {np.dtype(np.float32)}


def test_correlations_of_cosines_by_hand() -> None:
    # Cosines 1, 0 and 0.6 stand in the order of the scores 5, 0.5 and 3.
    rows = list(np.array([[2, 0], [1, 0], [1, 0], [1, 0], [0, 3], [3, 4]], np.float32))
    spearman, pearson = TASK.metrics(rows, features(PAIRS), {}, OPTIONS)
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
        TASK.metrics([np.ones(2, np.float32)] * 2, features(examples), {}, OPTIONS)


def test_a_row_is_an_embedding_and_no_decision() -> None:
    assert TASK.is_embedding
    assert TASK.decisions([np.ones(3, np.float32)] * 6, features(PAIRS), OPTIONS) is None


def test_each_row_is_trained_without_labels_or_classes() -> None:
    assert TASK.labels(features(PAIRS, rows=6), {}) == [{}] * 6
    assert TASK.class_names(PAIRS) is None
