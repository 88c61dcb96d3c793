"""Group inputs of different lengths into batches with little padding and few different shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.data.tokenizing.encoding import stack_padded

Feature = Mapping[str, NDArray[Any]]
"""One model input by name. Arrays `(tokens,)`, or `(choices, tokens)` for multiple choice."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """A batch that ran through a model.

    Attributes:
        outputs: Outputs of the model by name, `(batch, ...)`.
        inputs: Its inputs by name, padded.
        features: The inputs without padding.
        places: The place of each feature in the text or example that it is a part of, as its task
            describes it; `None` where the task needs none.
    """

    outputs: Mapping[str, NDArray[np.float32]]
    inputs: Mapping[str, NDArray[Any]]
    features: Sequence[Feature]
    places: Sequence[Any]

    def rows(self, name: str) -> list[NDArray[np.float32]]:
        """Return an output `(batch, tokens, ...)` of each feature, without padding."""
        return [
            row[: feature["input_ids"].shape[-1]]
            for row, feature in zip(self.outputs[name], self.features, strict=True)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How inputs are grouped; measured in docs/benchmarks.md.

    Attributes:
        tokens: Most tokens of a batch, padding included.
        multiple: Lengths are rounded up to a multiple of this, so that shapes repeat.
        has_few_shapes: Whether the inputs that are left at the end are divided into batches of 2^n
            rows, too. OpenVINO keeps what it prepared for each shape.
    """

    tokens: int
    multiple: int
    has_few_shapes: bool = True

    def group(
        self, lengths: Sequence[int], *, streams: int, limit: int
    ) -> list[tuple[list[int], int]]:
        """Return the indices of each batch and its length in tokens, longest inputs first.

        Streams get as many batches each, so that none waits for another at the end; with few
        shapes, only where there would be fewer batches than streams.

        Args:
            lengths: Number of tokens of each input.
            streams: Number of batches that run at the same time.
            limit: Longest input that the model takes; lengths are not rounded above it.
        """
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        total = tokens = sum(lengths)
        count = -(-total // (self.tokens * streams)) * streams
        batches: list[tuple[list[int], int]] = []
        start = 0
        while start < len(order):
            length = self.rounded(lengths[order[start]], limit=limit)
            left = len(order) - start
            if self.has_few_shapes:
                rows = max(1, min(self.tokens, -(-total // streams)) // length)
                rows = rows if rows <= left else 1 << (left.bit_length() - 1)
            else:
                # Rounded up, so that the last batches are the smallest.
                rows = -(-tokens // (max(1, count - len(batches)) * length))
                rows = max(1, min(rows, self.tokens // length))
            batch = order[start : start + rows]
            batches.append((batch, length))
            tokens -= sum(lengths[index] for index in batch)
            start += rows
        return batches

    def rounded(self, length: int, *, limit: int) -> int:
        """Return a length, rounded up, but not above the limit."""
        return max(length, min(-(-length // self.multiple) * self.multiple, limit))


def stack(
    features: Sequence[Feature], padding: Mapping[str, int], length: int
) -> dict[str, NDArray[np.int64]]:
    """Return features as one batch, padded at the end.

    `padding` has the value that pads each input, and `length` is in tokens.

    Returns:
        int64 arrays by name, `(batch, ..., length)`.
    """
    return {
        name: stack_padded([feature[name] for feature in features], padding[name], length=length)
        for name in features[0]
    }


def chunks(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of at most `size`, reading no further than needed."""
    chunk = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
