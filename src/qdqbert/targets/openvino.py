"""OpenVINO's CPU plugin, which reads the .onnx file and fuses Q/DQ pairs by itself.

Zero points cost it an extra pass over the sums, so biases take them.
"""

from __future__ import annotations

from qdqbert.graph.passes.absorbed_zero_points import absorb_zero_points
from qdqbert.numerics.affine import SAFE_ADJACENT_SUM_LIMIT
from qdqbert.targets.target import Target

OPENVINO = Target(
    name="openvino",
    summary="OpenVINO's CPU plugin, straight from the .onnx file",
    engines=("openvino",),
    recipe="linear",
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
    rewrites=(absorb_zero_points,),
)
