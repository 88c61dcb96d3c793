"""The tail of an encoder, as nodes of its graph."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qdqbert.encoders.model import TAIL_STATES, Tail

TAIL = "tail."
"""Start of the names of nodes and values of a tail."""


def append_tail(model: ir.Model, tail: Tail, states: str) -> None:
    """Append a tail to the graph of its model's heads, which has the last hidden states."""
    added = ir.from_proto(onnx.load_from_string(tail.graph))
    values = {value.name: value for node in model.graph for value in node.outputs}
    values |= {value.name: value for value in model.graph.inputs}
    values[TAIL_STATES] = values[states]
    for value in added.graph.inputs:
        value.replace_all_uses_with(values[value.name], replace_graph_outputs=True)
    nodes, outputs = list(added.graph), list(added.graph.outputs)
    constants = list(added.graph.initializers.values())
    for value in (*constants, *(each for node in nodes for each in node.outputs)):
        if value not in outputs:
            value.name = f"{TAIL}{value.name}"
            # Names of sizes mean something else in the other graph.
            value.shape = value.shape if value in constants else None
    added.graph.outputs.clear()
    added.graph.initializers.clear()
    added.graph.remove(nodes)
    for constant in constants:
        model.graph.register_initializer(constant)
    for index, node in enumerate(nodes):
        node.name = f"{TAIL}{index}"
    model.graph.extend(nodes)
    model.graph.outputs.extend(outputs)
    for value in outputs:
        value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))
    for domain, version in added.opset_imports.items():
        model.opset_imports[domain] = max(version, model.opset_imports.get(domain, 0))
