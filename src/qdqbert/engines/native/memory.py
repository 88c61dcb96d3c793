"""Arrays that start at a cache line, which vector and tile loads need to be fast."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line."""


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros that starts at a cache line."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.zeros(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(kind).reshape(shape)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as it is if it starts at a cache line, and a copy that does otherwise."""
    if array.flags.c_contiguous and array.ctypes.data % LINE == 0:
        return array
    found = zeros(array.shape, array.dtype)
    found[...] = array
    return found
