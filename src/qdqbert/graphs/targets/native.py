"""This package's own engine, which generates its kernels for the CPU that it runs on.

It runs an `EncoderModel`, whose weights are packed once, in the order in which the kernels read
them, so that loading maps the file into memory and changes nothing.

There is no graph. Linear layers run in int8, attention's products in 16-bit integers where the CPU
has VNNI, and everything else in float32; inputs of attention's matmuls and of residual adds are
fake-quantized there if the recipe quantizes them. The layer-by-layer check runs each layer of the
packed file on PyTorch's states (`engines/native/layers.py`).
"""

from __future__ import annotations

import dataclasses

from qdqbert.graphs.targets.target import Target
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT

NATIVE = Target(
    name="native",
    summary="this package's own engine on x86 and ARM CPUs, which runs texts without padding",
    engines=("native",),
    recipe="linear",
    quantizes="all_linear_layers",
    refused_groups=("output",),
    # The kernel for CPUs without VNNI adds two products in 16 bits.
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
    file="model.safetensors",
)

# Computing ranges at run time costs one pass over each input, while it is in the cache. It keeps
# values that the calibration data did not show. Each token has a range of its own, so that results
# do not depend on the batch. Channels are spread before, which makes these ranges small.
NATIVE_DYNAMIC = dataclasses.replace(
    NATIVE,
    name="native-dynamic",
    summary="the same engine, with ranges computed from each token at run time",
    dynamic=True,
    per_row=True,
    spreads=True,
)
