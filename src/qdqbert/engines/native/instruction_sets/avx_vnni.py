"""AVX2 with VNNI."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.instruction_sets.avx512_vnni import VPDPBUSD
from qdqbert.engines.native.kernels.short_products import ShortProducts
from qdqbert.engines.native.kernels.vector_tiles import VectorTiles

# 6 x 2 sums + 2 weights + 1 vector of codes of 16 registers.
AVX_VNNI = InstructionSet(
    name="avx-vnni",
    architecture="x86_64",
    cpu="x86-64-v3",
    features="+avxvnni,+fast-dpwssd",
    needs=("avx2", "avx_vnni"),
    lanes=8,
    dot=VPDPBUSD,
    rows=(6, 4, 2, 1),
    vectors=(2,),
    tiles=VectorTiles(prefetches=True),
    products=ShortProducts(),
)
