from __future__ import annotations

import copy

import numpy as np
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Example
from qdqbert.data.tokenizing.encoding import make_batches
from qdqbert.tasks.task import Features, Outcome
from qdqbert.tasks.text_generation import TEXT_GENERATION as TASK
from task_features import features_of

NAMES = ("input_ids", "attention_mask")
TEXTS = [Example(text="the cat"), Example(text="a dog was on the river")]


def encode(tokenizer, examples, max_length: int = 64) -> Features:
    return features_of(TASK, tokenizer, examples, max_length=max_length, names=NAMES)


def test_texts_are_read_line_by_line(write_file) -> None:
    path = write_file("texts.txt", "the cat\na dog was on the river\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    assert list(dataset.examples) == TEXTS
    TASK.check_labels(dataset, {})
    assert TASK.class_names is None


def test_truncated_texts_are_reported(tokenizer) -> None:
    made = encode(tokenizer, TEXTS, max_length=5)
    assert made.encoded.lengths == [4, 5]
    assert made.notices == ("1 of 2 texts was longer than 5 tokens and was cut.",)


def test_text_of_one_token_is_left_out(tokenizer) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.backend_tokenizer.post_processor = None
    made = encode(bare, [Example(text="cat"), *TEXTS])
    assert made.examples == tuple(TEXTS)
    assert made.notices == ("Left out 1 of 3 texts: with a single token, so nothing to predict.",)
    with pytest.raises(DataFileError, match="No text can be used: 1 text with a single token"):
        encode(bare, [Example(text="cat")])


def test_each_token_but_the_first_is_predicted_at_the_position_before(tokenizer) -> None:
    made = encode(tokenizer, TEXTS)
    (batch,) = make_batches(made.encoded, batch_size=2)
    # The longest text comes first.
    assert batch.indices == (1, 0)
    ids = batch.inputs["input_ids"]
    logits = np.zeros((*ids.shape, len(tokenizer)), np.float32)
    # Practically certain.
    np.put_along_axis(logits[:, :-1], ids[:, 1:, None], 50, axis=2)
    logits[0, 0] = 0
    predictions = TASK.predictions(made.results(batch, {"logits": logits}))[::-1]
    assert [each.shape for each in predictions] == [(3, 2), (7, 2)]
    for each, own in zip(predictions, made.encoded.inputs, strict=True):
        assert each[1:, 1].tolist() == own["input_ids"][2:].tolist()
    perplexity, accuracy = TASK.metrics(Outcome(predictions, made))
    # One of ten tokens is predicted uniformly over the vocabulary; the numbers are float32.
    assert perplexity.value == pytest.approx(len(tokenizer) ** 0.1, rel=1e-6)
    assert accuracy.value == pytest.approx(90)
    assert perplexity.is_error
    assert sum(map(len, TASK.decisions(Outcome(predictions, made)))) == 10


def test_labels_are_the_ids_for_transformers_to_shift(tokenizer) -> None:
    made = encode(tokenizer, TEXTS)
    labels = [label["labels"] for label in TASK.labels(made, {})]
    assert [label.tolist() for label in labels] == [
        tokenizer(example.text)["input_ids"] for example in TEXTS
    ]
    assert labels[0].dtype == np.int64
