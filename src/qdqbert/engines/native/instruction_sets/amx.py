"""AMX: linear layers and contexts use its tiles of 16 x 16 sums, the rest is AVX-512."""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_sets.avx512_vnni import AVX512_VNNI
from qdqbert.engines.native.kernels.amx_products import AmxProducts
from qdqbert.engines.native.kernels.amx_tiles import AmxTiles

AMX = dataclasses.replace(
    AVX512_VNNI,
    name="amx",
    features="+avx512vnni,+fast-dpwssd,+amx-tile,+amx-int8",
    needs=("avx512f", "avx512_vnni", "amx_int8"),
    tiles=AmxTiles(),
    products=AmxProducts(),
)
