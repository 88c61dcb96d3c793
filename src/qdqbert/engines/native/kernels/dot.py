"""The layout of u8 codes and s8 weights, for sums of products `start + codes @ weights`.

Weights are stored in panels of 16 columns, `(panels, depth / 4, 16, 4)`: the four weights that one
32-bit lane multiplies are neighbours.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.memory import LINE, with_zeros, zeros

PANEL = 16
"""Columns of a panel."""

Count = TypeVar("Count", int, Value)


def pack(weights: NDArray[np.int8], depth: int) -> NDArray[np.int8]:
    """Return weights `(columns, in)` in panels, `(panels, depth / 4, 16, 4)`, padded with zeros."""
    panels = -(-weights.shape[0] // PANEL)
    rows = np.ascontiguousarray(with_zeros(weights, (panels * PANEL, depth)))
    found = zeros((panels, depth // 4, PANEL, 4), np.int8)
    # Four weights move as one number.
    found.view(np.int32)[..., 0] = (
        rows.view(np.int32).reshape(panels, PANEL, depth // 4).transpose(0, 2, 1)
    )
    return found


def first_sums(
    weights: NDArray[np.int8], start: NDArray[np.int32], *, is_signed: bool
) -> NDArray[np.int32]:
    """Return the start values of the sums of tiles, int32 `(columns,)`.

    `start` has offsets of the sums of products, `(columns,)`. If they are signed, 128 is subtracted
    from codes before they are multiplied.
    """
    if not is_signed:
        return start
    panels, steps = weights.shape[:2]
    lanes = weights.reshape(panels, steps, 4 * PANEL).sum(axis=1, dtype=np.int32)
    found: NDArray[np.int32] = start + 128 * lanes.reshape(panels * PANEL, 4).sum(axis=1)
    return found.astype(np.int32)


def bytes_of_codes(channels: Count) -> Count:
    """Return the bytes from one row of codes to the next: a line more than there are channels.

    Without it, the rows of a tile would share a few sets of the first-level cache, because numbers
    of channels have many factors of 2.
    """
    return channels + LINE


def prefetch(f: Function, place: Value, *, level: int = 2) -> None:
    """Bring the line of an address into a level of the caches; any address is allowed."""
    f.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    # For reading; LLVM counts the three levels from the slowest one; data.
    f.raw(f"call void @llvm.prefetch.p0(ptr {place.text}, i32 0, i32 {4 - level}, i32 1)")
