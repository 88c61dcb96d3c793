"""Write the graph that a target runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices
from qdqbert.graph.legality import check_tensorrt_rules
from qdqbert.graph.passes.absorbed_zero_points import absorb_zero_points, absorb_zero_points_in_half
from qdqbert.graph.passes.half_precision import to_half_precision
from qdqbert.graph.passes.integer_attention import fuse_integer_attention
from qdqbert.graph.passes.integer_matmul import fuse_integer_matmul
from qdqbert.graph.passes.qordered import fuse_qordered
from qdqbert.graph.passes.residual_sum import sum_residuals
from qdqbert.graph.passes.sequence_padding import pad_sequences
from qdqbert.graph.writer import make_graph
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


def lower(model: EncoderModel, plan: Plan, choices: Choices) -> ir.Model:
    """Write the graph of a plan, then apply the target's rewrites and checks.

    Args:
        model: The model in float; not changed.
        plan: The target, and the spec of every site.
        choices: Ranges of the activations whose specs are not dynamic, and how weights are scaled
            and rounded.

    Raises:
        CalibrationError: An activation has a spec and no range.
        GraphError: The target cannot run the graph.
    """
    style = plan.target.style
    if plan.dedicated_pairs:
        style = dataclasses.replace(style, dedicated_pairs=True)
    graph = make_graph(model, plan.specs, choices, style)
    for rewrite in plan.target.rewrites:
        graph = REWRITES[rewrite](graph)
    for check in plan.target.checks:
        CHECKS[check](graph)
    return graph
