"""Write the graph that a target runs."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices
from qdqbert.graphs.targets.target import Plan
from qdqbert.graphs.targets.tensorrt_rules import check_tensorrt_rules
from qdqbert.graphs.writer import make_graph


def lower(model: EncoderModel, plan: Plan, choices: Choices) -> ir.Model:
    """Write the graph of a plan for a model in float, and check it; see `make_graph`.

    Raises:
        CalibrationError: An activation has a spec and no range.
        GraphError: The target cannot run the graph.
    """
    style = plan.target.style
    if plan.dedicated_pairs:
        style = dataclasses.replace(style, dedicated_pairs=True)
    graph = make_graph(model, plan.specs, choices, style)
    if plan.target.follows_tensorrt_rules:
        check_tensorrt_rules(graph)
    return graph
