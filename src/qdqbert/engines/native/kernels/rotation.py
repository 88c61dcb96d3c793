"""Rotary position embeddings: rotate queries and keys by angles that grow with the position."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I32, I64, Module, vector


def emit_rotation(module: Module, isa: InstructionSet) -> None:
    """Write `rotate_rows`, which rotates heads in place.

    Its arguments are the first row of float32 and the bytes from one row to the next, the number of
    rows, the number of heads and the channels of each, a multiple of 32, the position of each row
    as int32, and the table of cosines and sines, float32 `(limit, 2, channels / 2)`.
    """
    floats = vector(F32, isa.lanes)
    with module.function("rotate_rows", "x*, stride, rows, heads, size, positions*, table*") as f:
        half = f.size * 2
        with f.loop(0, f.rows) as row:
            position = f.load(I32, f.positions + row * 4).cast("sext", I64)
            angles = f.table + position * f.size * 4
            with f.loop(0, f.heads) as head, f.loop(0, half, 4 * isa.lanes) as channel:
                first = f.x + (row * f.stride + head * f.size * 4 + channel)
                second = first + half
                cos, sin = (f.load(floats, angles + (channel + each)) for each in (0, half))
                a, b = f.load(floats, first), f.load(floats, second)
                f.store(f.fma(b, sin * -1.0, a * cos), first)
                f.store(f.fma(a, sin, b * cos), second)
