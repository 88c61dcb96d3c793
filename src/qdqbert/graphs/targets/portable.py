"""Any runtime: standard ONNX operators only."""

from __future__ import annotations

from qdqbert.graphs.targets.target import Target
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT

PORTABLE = Target(
    name="portable",
    summary="standard ONNX Q/DQ for any runtime",
    engines=("onnxruntime", "openvino"),
    recipe="linear",
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
)
