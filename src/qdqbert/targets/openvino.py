"""OpenVINO's CPU plugin, which reads the .onnx file and fuses Q/DQ pairs by itself.

Zero points cost it an extra pass over the sums, so only GELU's outputs have one.
"""

from __future__ import annotations

from qdqbert.numerics.affine import SAFE_PAIR_LIMIT
from qdqbert.targets.target import Target

OPENVINO = Target(
    name="openvino",
    summary="OpenVINO's CPU plugin, straight from the .onnx file",
    engines=("openvino",),
    recipe="linear-signed",
    pair_limit=SAFE_PAIR_LIMIT,
)
