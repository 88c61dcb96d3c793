"""OpenVINO's CPU plugin, which reads the .onnx file and fuses Q/DQ pairs itself.

A zero point would cost it an extra pass over the sums, so zero points are moved into biases. With
VNNI, attention is faster if both of its products are int8; without, it is slower. One of them alone
is wrong on CPUs with AMX: see docs/decisions/0020-attention-on-openvino.md.
"""

from __future__ import annotations

from qdqbert.graphs.targets.target import Target
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT, QdqStyle

OPENVINO = Target(
    name="openvino",
    summary="OpenVINO's CPU plugin, which reads the .onnx file",
    engines=("openvino",),
    recipe="linear",
    vnni_recipe="linear+matmul",
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
    style=QdqStyle(absorbs_zero_points=True),
)
