"""Linear layers in float, by the tiles of codes: a step multiplies a float32, not four codes.

Rows of float32 take the place of rows of codes, a row of 16 weights that of four times 16, and sums
have the bits of float32. Each sum adds its products in the order of the depth, so that it does not
depend on the other rows.
"""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_set import Dot, InstructionSet
from qdqbert.engines.native.ir import F32, Function, Value, vector
from qdqbert.engines.native.kernels.float_products import FloatProducts
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles


def _add_fused(f: Function, total: Value, x: Value, weights: Value) -> Value:
    floats = vector(F32, total.type.lanes)
    return f.fma(*(each.bits(floats) for each in (x, weights, total))).bits(total.type)


def _add_rounded(f: Function, total: Value, x: Value, weights: Value) -> Value:
    floats = vector(F32, total.type.lanes)
    return (total.bits(floats) + x.bits(floats) * weights.bits(floats)).bits(total.type)


_FUSED = Dot(name="fma", add=_add_fused, multiplied=F32)
# A CPU without the instruction takes a call for each lane.
_ROUNDED = Dot(name="multiply and add", add=_add_rounded, multiplied=F32)


def in_float(isa: InstructionSet) -> InstructionSet:
    """Return an instruction set whose linear layers and products of attention are in float32."""
    tiles = isa.tiles if isinstance(isa.tiles, VectorTiles) else VectorTiles(prefetches=True)
    return dataclasses.replace(
        isa,
        dot=_FUSED if isa.architecture else _ROUNDED,
        exact_dot=None,
        rows=isa.float_rows or isa.rows,
        tiles=tiles,
        products=FloatProducts(),
    )
