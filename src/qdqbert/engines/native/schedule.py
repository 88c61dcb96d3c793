"""Divide texts among threads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEW_ROWS = 64
"""Up to this number of rows, reading the weights takes longer than multiplying by them."""

PART_ROWS = 256
"""Rows of texts that a thread computes together at least, if there is more than one of them."""

EXPERT_ROWS = 1024
"""The same for a model with experts, each of which has some of the rows."""

PRODUCTS_ALONE = 2**27
"""Up to this number of products of codes and weights, one thread runs a forward pass.

It takes a fraction of a millisecond. Threads wait for each other in each layer, so that two of them
gain at most a tenth of that, and lose milliseconds if another process has a core.
"""

PRODUCTS_OF_A_SLICE = 2**29
"""Up to this number, one thread takes less time than another process may keep a core."""

MANY_SLEEPS = 8
"""Sleeps of threads in a forward pass that show that another process has a core.

They take a millisecond. To wake a thread that had nothing to do takes a few of them.
"""

CALLS_ALONE = 50
"""Forward passes that one thread runs alone after threads have waited for a busy core."""

# How much more than its share a thread may get before threads share texts instead.
_IMBALANCE = 1.15
# Attention of a token costs this many times as much for each other token as for itself.
_ATTENTION_BASE = 64


@dataclasses.dataclass(frozen=True)
class Shares:
    """The work of each thread.

    Attributes:
        rows: Tokens of each thread.
        items: Pairs of text and head of each thread, `text * heads + head`.
        parts: Texts that each thread computes together, if it has its own: the first text of each
            part, and the end.
        is_shared: Whether threads share texts and have to wait for each other.
        by_columns: Whether each thread computes all rows, and some heads and columns. Then it has
            all rows and no items.
    """

    rows: list[range]
    items: list[range]
    parts: list[list[int]]
    is_shared: bool
    by_columns: bool = False


def useful_threads(tokens: int, products: int, threads: int, *, is_busy: bool = False) -> int:
    """Return how many threads run a forward pass.

    `products` is the number of products of codes and weights for each token, and `is_busy` whether
    another process has kept a core of these threads.
    """
    most = max(PRODUCTS_ALONE, PRODUCTS_OF_A_SLICE if is_busy else 0)
    return 1 if tokens * products <= most else threads


def divide(
    starts: NDArray[np.int64],
    heads: int,
    threads: int,
    *,
    has_columns: bool = True,
    part_rows: int = PART_ROWS,
) -> Shares:
    """Divide texts among threads: whole texts if that is balanced, else rows and heads.

    Very few rows are divided by columns.

    Args:
        starts: Index of the first token of each text, and of the end.
        heads: Number of attention heads.
        threads: Number of threads there are.
        has_columns: Whether very few rows can be divided by columns.
        part_rows: Rows that a thread computes together at most.
    """
    texts, tokens = len(starts) - 1, int(starts[-1])
    nothing: list[list[int]] = [[0]] * threads
    if threads == 1:
        return Shares(
            [range(tokens)], [range(texts * heads)], [_parts(starts, 0, texts, part_rows)], False
        )
    if has_columns and tokens <= FEW_ROWS:
        return Shares([range(tokens)] * threads, [range(0)] * threads, nothing, True, True)
    ends = [int(np.abs(starts - tokens * each / threads).argmin()) for each in range(threads + 1)]
    most = max(starts[ends[1:]] - starts[ends[:-1]])
    if texts >= threads and most <= _IMBALANCE * tokens / threads:
        rows = _ranges([int(starts[each]) for each in ends])
        parts = [_parts(starts, *each, part_rows) for each in itertools.pairwise(ends)]
        return Shares(rows, _ranges([each * heads for each in ends]), parts, False)
    lengths = np.repeat(np.diff(starts), heads).astype(np.float64)
    costs = np.concatenate([[0], np.cumsum(lengths * (lengths + _ATTENTION_BASE))])
    cuts = [int(np.abs(costs - costs[-1] * each / threads).argmin()) for each in range(threads + 1)]
    edges = [round(tokens * each / threads) for each in range(threads + 1)]
    return Shares(_ranges(edges), _ranges(cuts), nothing, True)


def _parts(starts: NDArray[np.int64], first: int, last: int, rows: int) -> list[int]:
    """Divide texts into parts of up to some rows, or one text."""
    if first < last and starts[last] - starts[first] <= rows:
        return [first, last]
    edges = [first]
    while edges[-1] < last:
        most = int(starts[edges[-1]]) + rows
        end = int(np.searchsorted(starts, most, side="right")) - 1
        edges.append(min(last, max(end, edges[-1] + 1)))
    return edges


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
