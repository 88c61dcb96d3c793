"""ONNX Runtime on x86 and ARM CPUs.

Its int8 kernels take unsigned activations and signed weights; signed activations fall back to
kernels as slow as float. It does not gain from int8 attention products or residual adds, so the
recipe leaves them in float, and the rewrites join what it leaves apart.
"""

from __future__ import annotations

from qdqbert.graph.passes.integer_attention import fuse_integer_attention
from qdqbert.graph.passes.integer_matmul import fuse_integer_matmul
from qdqbert.graph.passes.residual_sum import sum_residuals
from qdqbert.graph.qdq import QdqStyle
from qdqbert.numerics.affine import SAFE_ADJACENT_SUM_LIMIT
from qdqbert.targets.target import Target

_REWRITES = (fuse_integer_matmul, fuse_integer_attention, sum_residuals)

ONNXRUNTIME = Target(
    name="onnxruntime",
    summary="ONNX Runtime's CPU provider, with its fused int8 operators",
    engines=("onnxruntime",),
    recipe="linear",
    style=QdqStyle(unsigned_activations=True),
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
    rewrites=_REWRITES,
)

DYNAMIC = Target(
    name="onnxruntime-dynamic",
    summary="ONNX Runtime's CPU provider, with ranges taken from each batch as it runs",
    engines=("onnxruntime",),
    recipe="linear",
    dynamic=True,
    adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT,
    rewrites=_REWRITES,
)
"""Weights and smoothing as in `onnxruntime`. An input's own range each time costs a pass over it,
and keeps what calibration data does not show; an answer can change with the texts of its batch."""
