"""Write vectors as .npy files, for `numpy.load`, in pieces."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

_TYPE = np.dtype("<f4")


def write_vectors(vectors: Iterable[NDArray[np.float32]]) -> bytes:
    """Return vectors as float32 values, one after another."""
    return b"".join(np.ascontiguousarray(each, dtype=_TYPE).tobytes() for each in vectors)


def npy_header(rows: int, size_bytes: int) -> bytes:
    """Return the start of a .npy file."""
    dimensions = size_bytes // _TYPE.itemsize // rows if rows else 0
    buffer = io.BytesIO()
    npy_format.write_array_header_1_0(
        buffer,
        {"descr": _TYPE.str, "fortran_order": False, "shape": (rows, dimensions)},
    )
    return buffer.getvalue()
