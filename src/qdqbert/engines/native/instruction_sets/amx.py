"""AMX: linear layers and attention use its tiles of 16 x 16 sums, the rest is AVX-512."""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_sets.avx512_vnni import AVX512_VNNI
from qdqbert.engines.native.kernels.amx_tiles import AmxTiles
from qdqbert.engines.native.kernels.split_products import SplitProducts

AMX = dataclasses.replace(
    AVX512_VNNI,
    name="amx",
    features="+avx512vnni,+amx-tile,+amx-int8,+amx-bf16",
    needs=("avx512f", "avx512_vnni", "amx_int8", "amx_bf16"),
    tiles=AmxTiles(),
    products=SplitProducts(),
)
