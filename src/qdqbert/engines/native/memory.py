"""Arrays that start at a cache line, as vector and tile loads need, and sizes with padding."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line."""

_WIDTH = 64
"""Channels are padded to a multiple of this: the depth of AMX's tiles."""


def address(array: NDArray[Any]) -> int:
    """Return where the data of a writable contiguous array starts, which is not empty.

    `array.ctypes.data` is the same for any array, and takes four times as long.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(array.data))


def padded(count: int, multiple: int = _WIDTH) -> int:
    """Return a number, rounded up to a multiple."""
    return -(-count // multiple) * multiple


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros that starts at a cache line."""
    kind = np.dtype(dtype)
    size = kind.itemsize * (shape if isinstance(shape, int) else math.prod(shape))
    raw = np.zeros(size + LINE, np.uint8)
    start = -address(raw) % LINE
    return raw[start : start + size].view(kind).reshape(shape)


def with_zeros(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array with zeros at the end of its axes; the array itself if it has the shape."""
    if array.shape == shape:
        return array
    found = zeros(shape, array.dtype)
    found[tuple(map(slice, array.shape))] = array
    return found


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that starts at a cache line, copied if needed."""
    if array.flags.c_contiguous and array.ctypes.data % LINE == 0:
        return array
    found = zeros(array.shape, array.dtype)
    found[...] = array
    return found
