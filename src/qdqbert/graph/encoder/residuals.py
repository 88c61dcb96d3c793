"""Find the residual adds of layers that normalize first."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from qdqbert.graph.edit import constant_array

_ADDS = ("Add", "Sum")


def sum_of(value: ir.Value) -> tuple[ir.Value, ...] | None:
    """Return the terms of the Add or Sum that computes a value, or `None`."""
    node = value.producer()
    if node is None or node.op_type not in _ADDS or node.domain:
        return None
    return tuple(each for each in node.inputs if each is not None)


def residual_sums(graph: ir.Graph, linear_layers: Collection[ir.Value]) -> set[ir.Value]:
    """Return the sums of a linear layer's output and earlier states that several nodes read.

    In layers that normalize first, these are a LayerNorm and the next residual add. After BERT's
    residual adds, only a LayerNorm reads the sum.
    """
    found: set[ir.Value] = set()
    for node in graph:
        terms = sum_of(node.outputs[0]) if node.op_type in _ADDS else None
        if terms is None or len(terms) != 2 or node.outputs[0] in linear_layers:
            continue
        readers = {use.node for use in node.outputs[0].uses() if use.node.op_type != "Shape"}
        is_constant = any(constant_array(term) is not None for term in terms)
        adds_linear = any(term in linear_layers for term in terms)
        if len(readers) > 1 and adds_linear and not is_constant:
            found.add(node.outputs[0])
    return found
