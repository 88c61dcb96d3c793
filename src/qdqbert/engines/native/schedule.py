"""Divide texts among threads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEW_ROWS = 64
"""Up to this number of rows, reading the weights takes longer than multiplying by them."""

# How much more than its share a thread may get before threads share texts instead.
_IMBALANCE = 1.15
# Attention of a token costs this many times as much for each other token as for itself.
_ATTENTION_BASE = 64


@dataclasses.dataclass(frozen=True)
class Shares:
    """What each thread computes.

    Attributes:
        rows: Tokens of each thread.
        items: Pairs of text and head of each thread, `text * heads + head`.
        is_shared: Whether threads share texts and have to wait for each other.
        by_columns: Whether each thread computes all rows, and some heads and columns. Then it has
            all rows and no items.
    """

    rows: list[range]
    items: list[range]
    is_shared: bool
    by_columns: bool = False


def divide(starts: NDArray[np.int64], heads: int, threads: int) -> Shares:
    """Divide texts among threads: whole texts if that is balanced, else rows and heads.

    Very few rows are divided by columns.

    Args:
        starts: Index of the first token of each text, and of the end.
        heads: Number of attention heads.
        threads: Number of threads there are.
    """
    texts, tokens = len(starts) - 1, int(starts[-1])
    if threads == 1:
        return Shares([range(tokens)], [range(texts * heads)], False)
    if tokens <= FEW_ROWS:
        return Shares([range(tokens)] * threads, [range(0)] * threads, True, True)
    ends = [int(np.abs(starts - tokens * each / threads).argmin()) for each in range(threads + 1)]
    most = max(starts[ends[1:]] - starts[ends[:-1]])
    if texts >= threads and most <= _IMBALANCE * tokens / threads:
        rows = _ranges([int(starts[each]) for each in ends])
        return Shares(rows, _ranges([each * heads for each in ends]), False)
    lengths = np.repeat(np.diff(starts), heads).astype(np.float64)
    costs = np.concatenate([[0], np.cumsum(lengths * (lengths + _ATTENTION_BASE))])
    cuts = [int(np.abs(costs - costs[-1] * each / threads).argmin()) for each in range(threads + 1)]
    edges = [round(tokens * each / threads) for each in range(threads + 1)]
    return Shares(_ranges(edges), _ranges(cuts), True)


def divide_evenly(count: int, parts: int, multiple: int) -> list[range]:
    """Return `parts` ranges of about equal length that cover `range(count)`.

    Args:
        count: The end of the last range.
        parts: Number of ranges. Some are empty if there are too many.
        multiple: Every range starts at a multiple of this.
    """
    blocks = -(-count // multiple)
    edges = [min(count, round(blocks * each / parts) * multiple) for each in range(parts + 1)]
    return _ranges(edges)


def _ranges(edges: Sequence[int]) -> list[range]:
    return [range(a, b) for a, b in itertools.pairwise(edges)]
