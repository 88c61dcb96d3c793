"""Read LayerNorms and the sums in front of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Norm
from qdqbert.graph.edit import constant_array
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.residuals import sum_of
from qdqbert.graph.encoder.view import GraphView


def read_norm(view: GraphView, node: ir.Node) -> tuple[Norm, ir.Value]:
    """Read a LayerNormalization.

    Returns:
        The LayerNorm, and the value that it reads.

    Raises:
        GraphError: It is not over the last axis, or has no constant weight.
    """
    source = node.inputs[0]
    assert source is not None
    rank = len(view.shape(source))
    weight = constant_array(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = constant_array(given)
    if node.attributes.get_int("axis", -1) not in (-1, rank - 1):
        raise refuse(node, "is not over the last axis")
    if weight is None or weight.ndim != 1 or (given is not None and bias is None):
        raise refuse(node, "has no constant weight and bias")
    view.mark_read(node)
    return (
        Norm(
            weight=weight.astype(np.float32),
            bias=np.zeros_like(weight, np.float32) if bias is None else bias.astype(np.float32),
            epsilon=node.attributes.get_float("epsilon", 1e-5),
        ),
        source,
    )


def terms_of(view: GraphView, value: ir.Value) -> list[ir.Value]:
    """Return the terms of a sum, also of sums in it, and mark the nodes that add."""
    terms = sum_of(value)
    node = value.producer()
    if terms is None or node is None:
        return [value]
    view.mark_read(node)
    return [each for term in terms for each in terms_of(view, term)]
