"""NEON with dot products of signed integers."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import Dot, InstructionSet
from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.float_products import FloatProducts
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles


def _add_products(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    return f.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", total.type, total, weights, codes)


# 4 x 4 sums + 4 weights + 4 rows of codes of 32 registers.
NEON_DOTPROD = InstructionSet(
    name="neon-dotprod",
    architecture="aarch64",
    cpu="generic",
    features="+neon,+dotprod",
    needs=("asimddp",),
    lanes=4,
    dot=Dot(name="sdot", add=_add_products, is_signed=True),
    rows=(4, 2, 1),
    vectors=(4,),
    tiles=VectorTiles(steps_together=4),
    products=FloatProducts(),
)
