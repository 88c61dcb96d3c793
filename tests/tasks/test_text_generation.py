from __future__ import annotations

import numpy as np
import pytest

from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.encoding import make_batches
from qdqbert.errors import DataFileError
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, Example
from qdqbert.tasks.task import Features, TaskOptions
from qdqbert.tasks.text_generation import TEXT_GENERATION as TASK

NAMES = ("input_ids", "attention_mask")
TEXTS = [Example(text="the cat"), Example(text="a dog was on the river")]


@pytest.fixture(scope="module")
def tokenizer(checkpoints):
    return load_checkpoint(str(checkpoints("bert"))).tokenizer


def encode(tokenizer, examples, max_length: int = 64) -> Features:
    options = TaskOptions()
    return TASK.encode(
        examples, tokenizer, input_names=NAMES, max_length=max_length, options=options
    )


def test_the_task_is_listed_under_its_name() -> None:
    assert TASKS["text-generation"] is TASK


def test_texts_are_read_line_by_line(write_file) -> None:
    path = write_file("texts.txt", "the cat\na dog was on the river\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    assert list(dataset.examples) == TEXTS
    assert TASK.class_names(dataset.examples) is None


def test_texts_are_cut_and_told(tokenizer) -> None:
    made = encode(tokenizer, TEXTS, max_length=5)
    assert made.encoded.lengths == [4, 5]
    assert made.notices == ("1 of 2 texts were longer than 5 tokens and were cut.",)


def test_text_of_one_token_is_left_out_and_told(tokenizer) -> None:
    def bare(*chunk, **options):
        return tokenizer(*chunk, add_special_tokens=False, **options)

    bare.pad_token_id, bare.pad_token_type_id = 0, 0
    made = encode(bare, [Example(text="cat"), *TEXTS])
    assert made.examples == tuple(TEXTS)
    assert made.notices == ("1 of 3 texts have one token only, so none to guess: left out.",)
    with pytest.raises(DataFileError, match="All 1 texts have one token only"):
        encode(bare, [Example(text="cat")])


def test_each_token_but_the_first_is_guessed_from_the_place_before(tokenizer) -> None:
    made = encode(tokenizer, TEXTS)
    (batch,) = make_batches(made.encoded, batch_size=2)
    assert batch.indices == (1, 0)  # the longest first
    ids = batch.inputs["input_ids"]
    logits = np.zeros((*ids.shape, len(tokenizer)), np.float32)
    np.put_along_axis(logits[:, :-1], ids[:, 1:, None], 50, axis=2)  # as good as certain
    logits[0, 0] = 0
    rows = TASK.rows({"logits": logits}, batch, made)[::-1]
    assert [row.shape for row in rows] == [(3, 2), (7, 2)]
    for row, own in zip(rows, made.encoded.rows, strict=True):
        assert row[1:, 1].tolist() == own["input_ids"][2:].tolist()
    perplexity, accuracy = TASK.metrics(rows, made, {}, TaskOptions())
    # One of ten tokens is guessed among all of the vocabulary.
    assert perplexity.value == pytest.approx(len(tokenizer) ** 0.1, rel=1e-6)  # float32
    assert accuracy.value == pytest.approx(90)
    assert perplexity.is_error
    assert len(TASK.decisions(rows, made, TaskOptions())) == 10


def test_labels_are_the_ids_for_transformers_to_shift(tokenizer) -> None:
    made = encode(tokenizer, TEXTS)
    labels = [label["labels"] for label in TASK.labels(made, {})]
    assert [label.tolist() for label in labels] == [
        tokenizer(example.text)["input_ids"] for example in TEXTS
    ]
    assert labels[0].dtype == np.int64
