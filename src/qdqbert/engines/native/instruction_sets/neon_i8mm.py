"""NEON with I8MM."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import Dot, InstructionSet
from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.float_products import FloatProducts
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles


def _add_products(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    # The first operand is the unsigned one.
    return f.intrinsic("llvm.aarch64.neon.usdot.v4i32.v16i8", total.type, total, codes, weights)


# 4 x 4 sums + 4 weights + 4 rows of codes of 32 registers; `usdot` belongs to i8mm.
NEON_I8MM = InstructionSet(
    name="neon-i8mm",
    architecture="aarch64",
    cpu="generic",
    features="+neon,+dotprod,+i8mm",
    needs=("i8mm",),
    lanes=4,
    dot=Dot(name="usdot", add=_add_products),
    rows=(4, 2, 1),
    vectors=(4,),
    tiles=VectorTiles(steps_together=4),
    products=FloatProducts(),
)
