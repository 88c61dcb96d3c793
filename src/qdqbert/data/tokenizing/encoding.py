"""Tokenize texts and group them into batches of similar length, to keep padding short."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.common.input_names import POOLED
from qdqbert.data.tokenizing.long_texts import Kept
from qdqbert.data.tokenizing.tokenizer import Tokenizer

Inputs = dict[str, NDArray[np.int64]]
"""Model inputs by name, each `(batch, seq)`, or `(batch, choices, seq)`."""

# Lengths whose masks and token types are kept.
_LENGTHS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """Tokenized texts.

    Attributes:
        inputs: Model inputs by name, one mapping for each text. Arrays `(tokens,)`, or
            `(choices, tokens)`, int32.
        padding: Value that pads shorter texts, by input name.
        truncated: Number of texts that were longer than allowed and lost their end.
    """

    inputs: tuple[dict[str, NDArray[np.int32]], ...]
    padding: dict[str, int]
    truncated: int

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each text."""
        return [each["input_ids"].shape[-1] for each in self.inputs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Some texts, padded to the longest of them.

    Attributes:
        indices: Positions of the texts in `Encoded.inputs`.
        inputs: Inputs of the model.
    """

    indices: tuple[int, ...]
    inputs: Inputs


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    input_names: Sequence[str],
    max_length: int,
) -> Encoded:
    """Tokenize texts, or pairs of texts, and count those that are truncated.

    Args:
        tokenizer: Tokenizer of the model.
        texts: First texts.
        pairs: Second texts, one for each first text, if the model reads pairs.
        input_names: Inputs to return; `input_ids` must be among them.
        max_length: Longest input in tokens, special tokens included.
    """
    cutting = tokenizer.cutting(max_length)
    if pairs is None and tokenizer.template is not None:
        # Plain texts, which models can be calibrated on.
        pairs = texts
    items: Sequence[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
    kept = cutting.encode_start(items)
    return Encoded(
        inputs=tuple(feature_of(each, input_names) for each in kept),
        padding=padding_of(tokenizer, input_names),
        truncated=sum(each.truncated for each in kept),
    )


def feature_of(
    encoding: tokenizers.Encoding | Kept, input_names: Sequence[str]
) -> dict[str, NDArray[np.int32]]:
    """Return the model inputs of one encoding, each `(tokens,)`, int32."""
    ids = np.array(encoding.ids, dtype=np.int32)
    feature = {"input_ids": ids}
    if "attention_mask" in input_names:
        # The tokenizer does not pad.
        feature["attention_mask"] = _constant(1, ids.size)
    if POOLED in input_names:
        feature[POOLED] = _constant(1, ids.size)
    if "token_type_ids" in input_names:
        types = encoding.type_ids
        is_second = any(types)
        feature["token_type_ids"] = (
            np.array(types, dtype=np.int32) if is_second else _constant(0, ids.size)
        )
    return feature


@functools.lru_cache(_LENGTHS)
def _constant(value: int, length: int) -> NDArray[np.int32]:
    """Return an array of one value. Inputs of the same length share it."""
    made = np.full(length, value, np.int32)
    made.flags.writeable = False
    return made


def padding_of(tokenizer: Tokenizer, input_names: Sequence[str]) -> dict[str, int]:
    """Return the value that pads each input, by input name."""
    return {name: tokenizer.padding[name] for name in input_names}


def make_batches(encoded: Encoded, *, batch_size: int) -> list[Batch]:
    """Group texts of similar length, longest first, so that the first batch needs most memory."""
    lengths = encoded.lengths
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [
        make_batch(encoded, order[start : start + batch_size])
        for start in range(0, len(order), batch_size)
    ]


def first_rows(batch: Batch, *, tokens: int) -> Batch:
    """Return the first texts of a batch: at least one, and as many as fit into `tokens`."""
    rows = max(1, tokens // batch.inputs["input_ids"][0].size)
    return Batch(
        indices=batch.indices[:rows],
        inputs={name: values[:rows] for name, values in batch.inputs.items()},
    )


def make_batch(encoded: Encoded, indices: Sequence[int]) -> Batch:
    """Make a batch of the texts with these positions, padded to the longest of them."""
    chosen = [encoded.inputs[index] for index in indices]
    inputs = {
        name: stack_padded([each[name] for each in chosen], filler)
        for name, filler in encoded.padding.items()
    }
    return Batch(indices=tuple(indices), inputs=inputs)


def stack_padded(
    arrays: Sequence[NDArray[Any]], filler: int, *, length: int | None = None
) -> NDArray[np.int64]:
    """Stack arrays `(..., tokens)` to `(batch, ..., length)`, int64, padded with `filler`.

    By default, the longest array gives the length.
    """
    if length is None:
        length = max(array.shape[-1] for array in arrays)
    padded = np.full((len(arrays), *arrays[0].shape[:-1], length), filler, dtype=np.int64)
    for target, array in zip(padded, arrays, strict=True):
        target[..., : array.shape[-1]] = array
    return padded
