"""AVX-512 with VNNI."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import Dot, InstructionSet
from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.short_products import ShortProducts
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles


def _add_products(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * total.type.lanes}"
    return f.intrinsic(name, total.type, total, codes, weights)


VPDPBUSD = Dot(name="vpdpbusd", add=_add_products)

# 8 x 3 sums + 3 weights + 1 vector of codes of 32 registers. Rows and columns are often multiples
# of 8 and of 48.
AVX512_VNNI = InstructionSet(
    name="avx512-vnni",
    architecture="x86_64",
    cpu="x86-64-v4",
    # LLVM would divide `vpdpwssd` into two instructions without the second one.
    features="+avx512vnni,+fast-dpwssd",
    needs=("avx512f", "avx512_vnni"),
    lanes=16,
    dot=VPDPBUSD,
    rows=(8, 4, 2, 1),
    vectors=(3, 2, 1),
    tiles=VectorTiles(prefetches=True),
    products=ShortProducts(),
)
