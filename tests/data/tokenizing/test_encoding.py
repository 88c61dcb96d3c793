from __future__ import annotations

import numpy as np
import pytest

from qdqbert.data.tokenizing.encoding import (
    Batch,
    Encoded,
    encode,
    first_rows,
    make_batches,
    padding_of,
    stack_padded,
)
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer

NAMES = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def tokenizer(checkpoints):
    return load_checkpoint(str(checkpoints("bert"))).tokenizer


@pytest.mark.parametrize("pairs", [None, ["rain on the river", "a"]], ids=["texts", "pairs"])
def test_inputs_are_those_of_each_text_alone(tokenizer, pairs) -> None:
    texts = ["the cat sat", "a dog, far from home"]
    encoded = encode(runtime_tokenizer(tokenizer), texts, pairs, input_names=NAMES, max_length=64)
    for index, inputs in enumerate(encoded.inputs):
        alone = tokenizer(texts[index], None if pairs is None else pairs[index])
        assert {name: values.tolist() for name, values in inputs.items()} == {
            name: alone[name] for name in NAMES
        }
    assert encoded.truncated == 0
    assert encoded.lengths == [len(inputs["input_ids"]) for inputs in encoded.inputs]


@pytest.mark.parametrize(
    ("words", "truncated"), [(3, 0), (4, 1)], ids=["just-fits", "one-too-many"]
)
def test_longer_texts_are_truncated_and_counted(tokenizer, words, truncated) -> None:
    # [CLS] and [SEP] take two of five tokens.
    encoded = encode(
        runtime_tokenizer(tokenizer), [" ".join(["cat"] * words)], input_names=NAMES, max_length=5
    )
    assert encoded.lengths == [5]
    assert encoded.truncated == truncated
    assert encoded.inputs[0]["input_ids"][-1] == tokenizer.sep_token_id


def test_a_pair_is_truncated_to_its_total_length(tokenizer) -> None:
    encoded = encode(
        runtime_tokenizer(tokenizer), ["cat " * 9], ["dog " * 9], input_names=NAMES, max_length=12
    )
    assert encoded.truncated == 1
    assert encoded.lengths == [12]
    assert set(encoded.inputs[0]["token_type_ids"].tolist()) == {0, 1}


def test_many_texts_are_encoded_in_order(tokenizer) -> None:
    texts = [f"cat {'dog ' * (index % 7)}" for index in range(150)]
    encoded = encode(runtime_tokenizer(tokenizer), texts, input_names=("input_ids",), max_length=6)
    assert encoded.lengths == [min(6, 3 + index % 7) for index in range(150)]
    assert encoded.truncated == sum(3 + index % 7 > 6 for index in range(150))
    assert set(encoded.inputs[0]) == {"input_ids"}


def test_batches_are_longest_first_and_hold_each_text_once(tokenizer) -> None:
    texts = [f"{'dog ' * length}" for length in (3, 1, 5, 2, 4)]
    encoded = encode(runtime_tokenizer(tokenizer), texts, input_names=NAMES, max_length=64)
    batches = make_batches(encoded, batch_size=2)
    assert [batch.indices for batch in batches] == [(2, 4), (0, 3), (1,)]
    assert [batch.inputs["input_ids"].shape for batch in batches] == [(2, 7), (2, 5), (1, 3)]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_batches_are_padded_as_by_the_tokenizer(checkpoints, family) -> None:
    checkpoint = load_checkpoint(str(checkpoints(family)))
    texts = ["the cat sat on a tree", "rain"]
    encoded = encode(
        runtime_tokenizer(checkpoint.tokenizer),
        texts,
        input_names=checkpoint.input_names,
        max_length=64,
    )
    (batch,) = make_batches(encoded, batch_size=2)
    expected = checkpoint.tokenizer(texts, padding=True, return_tensors="np")
    assert set(batch.inputs) == set(checkpoint.input_names)
    for name, array in batch.inputs.items():
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, expected[name])


def test_padding_is_the_tokenizers_for_the_requested_inputs(tokenizer) -> None:
    own = runtime_tokenizer(tokenizer)
    assert padding_of(own, ("attention_mask",)) == {"attention_mask": 0}
    assert padding_of(own, NAMES) == {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }


@pytest.mark.parametrize(
    ("arrays", "stacked"),
    [
        ([[1, 2, 3], [4]], [[1, 2, 3], [4, 9, 9]]),
        ([[[1, 2], [3, 4]], [[5], [6]]], [[[1, 2], [3, 4]], [[5, 9], [6, 9]]]),
    ],
    ids=["tokens", "choices-and-tokens"],
)
def test_arrays_are_padded_to_the_longest(arrays, stacked) -> None:
    padded = stack_padded([np.array(each, np.int32) for each in arrays], 9)
    assert padded.dtype == np.int64
    assert padded.tolist() == stacked


def test_choices_are_batched_by_their_tokens() -> None:
    inputs = tuple({"input_ids": np.full((3, tokens), tokens, np.int32)} for tokens in (2, 4))
    encoded = Encoded(inputs=inputs, padding={"input_ids": 0}, truncated=0)
    assert encoded.lengths == [2, 4]
    (batch,) = make_batches(encoded, batch_size=2)
    assert batch.indices == (1, 0)
    assert batch.inputs["input_ids"].shape == (2, 3, 4)
    assert batch.inputs["input_ids"][1].tolist() == [[2, 2, 0, 0]] * 3


def test_the_first_rows_of_a_batch_fit_into_a_number_of_tokens() -> None:
    ids = np.arange(24).reshape(4, 6)
    batch = Batch(indices=(7, 5, 3, 1), inputs={"input_ids": ids, "attention_mask": ids + 1})
    for tokens, rows in ((0, 1), (6, 1), (17, 2), (24, 4), (99, 4)):
        part = first_rows(batch, tokens=tokens)
        assert part.indices == batch.indices[:rows]
        for name, values in part.inputs.items():
            np.testing.assert_array_equal(values, batch.inputs[name][:rows])
