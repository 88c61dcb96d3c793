"""TensorRT on NVIDIA GPUs: a strongly typed float16 graph with symmetric int8 Q/DQ pairs.

TensorRT 11 builds only strongly typed networks. Other operations than int8 ones run in the type
that the graph specifies, so a float32 graph with Q/DQ would run in float32 between its int8
matmuls.

Where float16 gives wrong results, the graph stays in float32. Its numbers are checked on ONNX
Runtime, as a proxy: no TensorRT has run it (decision 7).
"""

from __future__ import annotations

from qdqbert.graphs.targets.target import Target
from qdqbert.quantization.spec import QdqStyle

TENSORRT = Target(
    name="tensorrt",
    summary="TensorRT 10 and newer: strongly typed float16 with symmetric int8",
    # ONNX Runtime has no float16 matmuls on most CPUs and casts around them: correct, but slow.
    engines=("onnxruntime",),
    is_proxy=True,
    # `linear` is the most faithful. `full` also quantizes residual adds, which TensorRT fuses into
    # the matmul before them only if both sides are int8 (NVIDIA/TensorRT#3243, #1604). On one GPU
    # `ffn` was faster than that (NVIDIA/TensorRT-Model-Optimizer#159). So compare their latency.
    recipe="linear",
    # A Q/DQ pair in front of a LayerNormalization or a softmax would keep TensorRT from fusing it.
    refused_groups=("output",),
    zero_points="linear_inputs",
    unsigned=False,
    style=QdqStyle(absorbs_zero_points=True, float16=True),
    follows_tensorrt_rules=True,
    last_bits=2.0**-11,
)
