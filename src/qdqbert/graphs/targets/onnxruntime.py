"""ONNX Runtime on x86 and ARM CPUs.

Its int8 kernels take unsigned activations and signed weights. With signed activations they are as
slow as float. Attention matmuls and residual adds do not get faster in int8, so the recipe leaves
them in float. The graph has operators that ONNX Runtime does not fuse itself.
"""

from __future__ import annotations

from qdqbert.graphs.targets.target import Target
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT, QdqStyle

ONNXRUNTIME = Target(
    name="onnxruntime",
    summary="ONNX Runtime's CPU provider, with its fused int8 operators",
    engines=("onnxruntime",),
    recipe="linear",
    style=QdqStyle(unsigned_activations=True, onnxruntime_operators=True),
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
)

# Weights and smoothing are the same as `onnxruntime`'s. Computing ranges at run time costs one pass
# over each input. It keeps values that the calibration data did not show, and it makes a prediction
# depend on the other texts of its batch.
DYNAMIC = Target(
    name="onnxruntime-dynamic",
    summary="ONNX Runtime's CPU provider, with ranges computed from each batch at run time",
    engines=("onnxruntime",),
    recipe="linear",
    dynamic=True,
    style=QdqStyle(onnxruntime_operators=True),
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
)
