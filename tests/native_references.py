"""What kernels of the native engine compute, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.quantization.hadamard import Hadamard

# Range of rows of zeros.
_SMALLEST = 1e-30


def dot(
    codes: NDArray[np.uint8], weights: NDArray[np.int8], start: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Compute what the kernel computes: codes `(rows, in)`, weights `(columns, in)`."""
    return (start + codes.astype(np.int64) @ weights.T.astype(np.int64)).astype(np.int32)


def round_trip(
    x: NDArray[np.float32],
    multiplier: NDArray[np.float32],
    step: NDArray[np.float32],
    zero_point: int,
    low: int,
    high: int,
) -> NDArray[np.float64]:
    """Compute the values: x `(rows, channels)`, multiplier and step `(channels,)`."""
    codes = np.rint(x.astype(np.float64) * multiplier) + zero_point
    return np.asarray((np.clip(codes, low, high) - zero_point) * step, np.float64)


def product(
    x: NDArray[np.float32], weights: NDArray[np.float32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Compute what the kernel computes: x `(rows, in)`, weights `(columns, in)`."""
    return (x.astype(np.float64) @ weights.T.astype(np.float64) + bias).astype(np.float32)


def layer_norm(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    epsilon: float,
    *,
    subtracts_mean: bool = True,
) -> NDArray[np.float32]:
    """Normalize rows `(rows, width)`: a LayerNorm, or RMSNorm without their means."""
    wide = x.astype(np.float64)
    centered = wide - wide.mean(axis=1, keepdims=True) * subtracts_mean
    variance = (centered**2).mean(axis=1, keepdims=True)
    found = centered / np.sqrt(variance + epsilon) * weight + bias
    return np.asarray(found, np.float32)


def codes(
    x: NDArray[np.float32], multiplier: NDArray[np.float32], zero_point: int
) -> NDArray[np.uint8]:
    """Return the codes of rows."""
    rounded = np.rint(x.astype(np.float64) * multiplier) + zero_point
    return np.asarray(np.clip(rounded, 0, 255), np.uint8)


def dynamic_codes(
    x: NDArray[np.float32], multiplier: NDArray[np.float32]
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the codes of rows, and the scale of each of them."""
    values = x.astype(np.float64) * multiplier
    scale = np.maximum(np.abs(values).max(axis=1), _SMALLEST) / 127
    return np.asarray(np.rint(values / scale[:, None]) + 128, np.uint8), scale


def spread(x: NDArray[Any], matrix: Hadamard | None) -> NDArray[np.float64]:
    """Multiply rows by a matrix, entry by entry: -1 to the number of bits that places share."""
    if matrix is None:
        return np.asarray(x, np.float64)
    channels = x.shape[-1]
    place = np.arange(channels)
    step = channels // matrix.members
    member, lane = place // step, place % matrix.block
    # Places of a group differ only in their member and in their lane.
    group = place % step // matrix.block
    shared = np.array([[(a & b).bit_count() for b in range(64)] for a in range(64)])
    signs = (-1.0) ** (shared[np.ix_(member, member)] + shared[np.ix_(lane, lane)])
    return x.astype(np.float64) @ np.where(np.equal.outer(group, group), signs, 0)


def relative_scores(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    keys: NDArray[np.float32] | None,
    queries: NDArray[np.float32] | None,
    rows: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Compute what is added to the scores of one head.

    Args:
        query: `(tokens, head size)`.
        key: `(tokens, head size)`.
        keys: The table that queries are multiplied by, `(rows, head size)`.
        queries: The table that keys are multiplied by, `(rows, head size)`.
        rows: The row for key minus query, `(2 * limit - 1,)`.
    """
    places = np.arange(len(query))
    chosen = rows[places - places[:, None] + len(rows) // 2]
    found = np.zeros(chosen.shape)
    if keys is not None:
        found += np.einsum("id,ijd->ij", query.astype(np.float64), keys[chosen])
    if queries is not None:
        found += np.einsum("jd,ijd->ij", key.astype(np.float64), queries[chosen])
    return found


def rotate(
    x: NDArray[np.float32], positions: NDArray[np.int32], table: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Compute what the kernel computes: x `(rows, heads, size)`, table `(limit, 2, size / 2)`."""
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = np.moveaxis(table[positions].astype(np.float64), 1, 0)[:, :, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    scale: float,
    *,
    bias: NDArray[np.float32] | None = None,
    causal: bool = False,
    window: int | None = None,
    attended: int | None = None,
) -> NDArray[np.float64]:
    """Compute the context of one head: query, key and value `(tokens, head size)`.

    The first `attended` tokens are attended to. A token that attends to none has the context 0.
    """
    scores = query.astype(np.float64) @ key.T.astype(np.float64) * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = np.where(np.tri(len(query), dtype=bool), scores, -np.inf)
    if window is not None:
        places = np.arange(len(query))
        scores = np.where(np.abs(places - places[:, None]) <= window, scores, -np.inf)
    if attended is not None:
        scores[:, attended:] = -np.inf
    weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), -1e9))
    totals = np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    return np.asarray(weights @ value.astype(np.float64) / totals)
