"""The float model, with nothing quantized.

OpenVINO computes it in bf16 on CPUs that have it, which can be faster than any INT8 graph.

It has no recipe: a recipe of the call applies to the other targets only.
"""

from __future__ import annotations

from qdqbert.graphs.targets.target import Target

FLOAT = Target(
    name="float",
    summary="the float model, for ONNX Runtime and OpenVINO",
    engines=("onnxruntime", "openvino"),
    recipe="float",
    quantizes="nothing",
)
