"""Rows of a head as panels of 16 columns."""

from __future__ import annotations

import contextlib

from qdqbert.engines.native.ir import F32, I64, PTR, Function, Module, Value

DEPTH = 64
"""Buffers of attention have a multiple of so many tokens and channels: a tile of AMX."""


def pack_function(module: Module, name: str) -> contextlib.AbstractContextManager[Function]:
    """Return the function `pack_keys` or `pack_values`; see `instruction_set.Products`."""
    arguments = "source*, stride, length, size"
    return module.function(name, arguments, factor=F32, out=PTR, bounds=PTR, known=PTR, prefix=I64)


def place_of(f: Function, token: Value, *, shared: bool) -> Value:
    """Return the place of the row of a token, in a function of `pack_function`.

    If it is `shared`, rows before those at `source` may be those of a prefix, at `known`.
    """
    if not shared:
        return f.source + token * f.stride
    own = f.source + (token - f.prefix) * f.stride
    return (token < f.prefix).select(f.known + token * (f.size * 4), own)


def padded_to(count: Value, multiple: int) -> Value:
    """Return a number, rounded up to a multiple."""
    return (count + (multiple - 1)) // multiple * multiple


def transposed(rows: list[Value]) -> list[Value]:
    """Return the columns of a square matrix."""
    # Interleaving the upper and the lower half moves the highest bit of a row's number to the
    # lowest bit of the column's.
    count = len(rows)
    for _ in range(count.bit_length() - 1):
        order = [each // 2 + count * (each % 2) for each in range(2 * count)]
        pairs = zip(rows[: count // 2], rows[count // 2 :], strict=True)
        rows = [
            upper.shuffle(part, lower)
            for upper, lower in pairs
            for part in (order[:count], order[count:])
        ]
    return rows
