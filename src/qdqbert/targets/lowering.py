"""Lower a graph with sites to the graph that a target runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from qdqbert.graph.legality import check_tensorrt_rules
from qdqbert.graph.passes.absorbed_zero_points import absorb_zero_points, absorb_zero_points_in_half
from qdqbert.graph.passes.half_precision import to_half_precision
from qdqbert.graph.passes.integer_attention import fuse_integer_attention
from qdqbert.graph.passes.integer_matmul import fuse_integer_matmul
from qdqbert.graph.passes.qordered import fuse_qordered
from qdqbert.graph.passes.residual_sum import sum_residuals
from qdqbert.graph.passes.sequence_padding import pad_sequences
from qdqbert.graph.qdq import insert_qdq
from qdqbert.numerics.weight_rounding import Roundings
from qdqbert.spec import Range
from qdqbert.targets.target import CheckName, Plan, RewriteName

REWRITES: Mapping[RewriteName, Callable[[ir.Model], ir.Model]] = {
    "fuse_integer_matmul": fuse_integer_matmul,
    "fuse_integer_attention": fuse_integer_attention,
    "sum_residuals": sum_residuals,
    "absorb_zero_points": absorb_zero_points,
    "absorb_zero_points_in_half": absorb_zero_points_in_half,
    "to_half_precision": to_half_precision,
    "fuse_qordered": fuse_qordered,
    "pad_sequences": pad_sequences,
}
CHECKS: Mapping[CheckName, Callable[[ir.Model], None]] = {
    "check_tensorrt_rules": check_tensorrt_rules,
}


def lower(
    sited: ir.Model,
    plan: Plan,
    ranges: Mapping[str, Range],
    scales: Mapping[str, NDArray[np.float32]],
    weight_amax: Mapping[str, torch.Tensor] | None = None,
    means: Mapping[str, torch.Tensor] | None = None,
    roundings: Roundings | None = None,
) -> ir.Model:
    """Insert Q/DQ pairs where the plan has specs, then apply the target's rewrites and checks.

    Args:
        sited: Float graph with `Site` nodes; not changed.
        plan: The target, and the spec of every site.
        ranges: Ranges by site name, for every activation with a spec that is not dynamic.
        scales: `pre_quant_scale` by site name, `(channels,)`.
        weight_amax: Ranges of weights that differ from the weights' own, by site name, `()` or
            `(channels,)`.
        means: Mean of the inputs of linear layers whose biases are corrected, by site name,
            `(channels,)`.
        roundings: How weights are rounded, where it is not to the nearest code.

    Raises:
        GraphError: The target cannot run the graph.
    """
    style = plan.target.style
    if plan.dedicated_pairs:
        style = dataclasses.replace(style, dedicated_pairs=True)
    model = insert_qdq(
        sited,
        plan.specs,
        ranges,
        scales=scales,
        weight_amax=weight_amax,
        means=means,
        roundings=roundings,
        style=style,
    )
    for rewrite in plan.target.rewrites:
        model = REWRITES[rewrite](model)
    for check in plan.target.checks:
        CHECKS[check](model)
    return model
