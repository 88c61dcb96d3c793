"""AVX2."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import Dot, InstructionSet
from qdqbert.engines.native.ir import I16, Function, Value, vector
from qdqbert.engines.native.kernels.short_products import ShortProducts, vpmaddwd
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles


def _add_pairs(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    # Sums of two products have 16 bits. The adjacent sum limit keeps them from saturating.
    shorts = vector(I16, 2 * total.type.lanes)
    pairs = f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", shorts, codes, weights)
    ones = f.constant(pairs.type, 1)
    return total + f.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, pairs, ones)


def _add_halves(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    # Even and odd bytes as 16 bits: codes are unsigned, weights signed.
    shorts = vector(I16, 2 * total.type.lanes)
    codes, weights = codes.bits(shorts), weights.bits(shorts)
    even = (codes & 255, (weights << 8) >> 8)
    odd = (f.shift_unsigned(codes, 8), weights >> 8)
    for pair in (even, odd):
        total = total + f.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, *pair)
    return total


# 4 x 2 sums + 2 weights + 1 vector of codes + the constant 1 and a temporary of 16 registers. In
# float, 6 x 2 sums + 2 weights + 1 vector of floats.
AVX2 = InstructionSet(
    name="avx2",
    architecture="x86_64",
    cpu="x86-64-v3",
    needs=("avx2",),
    lanes=8,
    dot=Dot(name="pmaddubsw", add=_add_pairs, is_exact=False),
    exact_dot=Dot(name="pmaddwd", add=_add_halves),
    rows=(4, 2, 1),
    float_rows=(6, 4, 2, 1),
    vectors=(2,),
    tiles=VectorTiles(prefetches=True),
    products=ShortProducts(add_pairs=vpmaddwd),
)
