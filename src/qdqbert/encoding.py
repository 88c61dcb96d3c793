"""Texts to model inputs: tokenized once, then batched by length so that little is padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Inputs = dict[str, NDArray[np.int64]]
"""Model inputs by name, each `(batch, seq)`, or `(batch, choices, seq)`."""

_CHUNK = 64
# Texts tokenized at a time: a tokenizer's answer is a hundred times as large as its ids.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """Tokenized texts.

    Attributes:
        rows: For each text its inputs by name, each `(tokens,)`, or `(choices, tokens)`, int32.
        padding: What fills a shorter row, by input name.
        truncated: How many texts were longer than allowed and lost their end.
    """

    rows: tuple[dict[str, NDArray[np.int32]], ...]
    padding: dict[str, int]
    truncated: int

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [row["input_ids"].shape[-1] for row in self.rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Some texts, padded to the longest of them.

    Attributes:
        indices: Which texts these are.
        inputs: What the model is given.
    """

    indices: tuple[int, ...]
    inputs: Inputs


def encode(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    input_names: Sequence[str],
    max_length: int,
) -> Encoded:
    """Tokenizes texts, or pairs of texts, and counts those that had to be cut.

    Args:
        tokenizer: A transformers tokenizer.
        texts: First texts.
        pairs: Second texts, as many, if the model reads pairs.
        input_names: Which inputs to make; `input_ids` among them.
        max_length: Longest row in tokens, special ones included.
    """
    rows: list[dict[str, NDArray[np.int32]]] = []
    truncated = 0
    for start in range(0, len(texts), _CHUNK):
        chunk = [list(texts[start : start + _CHUNK])]
        if pairs is not None:
            chunk.append(list(pairs[start : start + _CHUNK]))
        uncut = tokenizer(*chunk, verbose=False)
        truncated += sum(len(ids) > max_length for ids in uncut["input_ids"])
        cut = tokenizer(*chunk, truncation=True, max_length=max_length)
        rows += [
            {name: np.array(cut[name][index], dtype=np.int32) for name in input_names}
            for index in range(len(chunk[0]))
        ]
    return Encoded(
        rows=tuple(rows),
        padding=padding_of(tokenizer, input_names),
        truncated=truncated,
    )


def padding_of(tokenizer: Any, input_names: Sequence[str]) -> dict[str, int]:
    """What fills a shorter row, by input name."""
    known = {
        "input_ids": tokenizer.pad_token_id,
        "attention_mask": 0,
        "token_type_ids": tokenizer.pad_token_type_id,
    }
    return {name: known[name] for name in input_names}


def make_batches(encoded: Encoded, *, batch_size: int) -> list[Batch]:
    """Batches of texts of like length, longest first, so that the first shows the peak memory."""
    lengths = encoded.lengths
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [
        _pad(encoded, order[start : start + batch_size])
        for start in range(0, len(order), batch_size)
    ]


def _pad(encoded: Encoded, indices: Sequence[int]) -> Batch:
    rows = [encoded.rows[index] for index in indices]
    inputs = {
        name: stack_padded([row[name] for row in rows], filler)
        for name, filler in encoded.padding.items()
    }
    return Batch(indices=tuple(indices), inputs=inputs)


def stack_padded(rows: Sequence[NDArray[Any]], filler: int) -> NDArray[np.int64]:
    """Rows `(..., tokens)` of one batch as `(batch, ..., longest)`, int64."""
    longest = max(row.shape[-1] for row in rows)
    padded = np.full((len(rows), *rows[0].shape[:-1], longest), filler, dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[..., : row.shape[-1]] = row
    return padded
