"""Write vectors as .npy files, for `numpy.load`, in pieces."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from qdqbert.data.tables.rows import Column


def write_vectors(vectors: Iterable[NDArray[Any]], dtype: str) -> bytes:
    """Return vectors as values of a type, one after another."""
    kind = _stored(dtype)
    return b"".join(np.ascontiguousarray(each, dtype=kind).tobytes() for each in vectors)


def npy_header(rows: int, size_bytes: int, column: Column) -> bytes:
    """Return the start of a .npy file with the vectors of a column."""
    kind = _stored(column.dtype)
    dimensions = size_bytes // kind.itemsize // rows if rows else column.length or 0
    buffer = io.BytesIO()
    npy_format.write_array_header_1_0(
        buffer, {"descr": kind.str, "fortran_order": False, "shape": (rows, dimensions)}
    )
    return buffer.getvalue()


def _stored(dtype: str) -> np.dtype[Any]:
    """Return a type with its least significant byte first."""
    return np.dtype(dtype).newbyteorder("<")
