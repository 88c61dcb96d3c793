"""Divide texts among threads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# A thread gets at least this number of rows: fewer cost a tile of AMX as much.
_FEWEST_ROWS = 16
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
    """

    rows: list[range]
    items: list[range]
    is_shared: bool


def divide(starts: NDArray[np.int64], heads: int, threads: int) -> Shares:
    """Divide texts among threads: whole texts if that is balanced, else rows and heads.

    Args:
        starts: Index of the first token of each text, and of the end.
        heads: Number of attention heads.
        threads: Number of threads there are.
    """
    texts, tokens = len(starts) - 1, int(starts[-1])
    threads = max(1, min(threads, tokens // _FEWEST_ROWS))
    if threads == 1:
        return Shares([range(tokens)], [range(texts * heads)], False)
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


def _ranges(edges: Sequence[int]) -> list[range]:
    return [range(a, b) for a, b in itertools.pairwise(edges)]
