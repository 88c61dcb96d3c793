"""A float graph with a node at every site, made of an `EncoderModel`."""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from qdqbert.encoders.model import TAIL_STATES, EncoderModel, Tail
from qdqbert.graph.qdq import SITE_DOMAIN
from qdqbert.graph.writer import make_graph
from qdqbert.spec import SiteGroup

TAIL = "tail."
"""Start of the names of nodes and values of a tail."""


def sited_graph(model: EncoderModel, groups: Collection[SiteGroup]) -> ir.Model:
    """Return the float graph of a model, in which every site is a `qdqbert::Site` node.

    Args:
        model: The model in float. The graph shares its arrays.
        groups: Groups of the sites.
    """
    made = make_graph(model, groups)
    # Shapes pass a site as long as it is an operator of ONNX.
    graph = common.ShapeInferencePass()(made.model).model
    for node in graph.graph:
        if node.name in made.sites:
            node.op_type, node.domain = "Site", SITE_DOMAIN
            node.attributes["site"] = ir.AttrString("site", str(node.name))
    if not model.has_choices:
        _name_sizes(graph.graph)
    if model.tail is not None:
        _append(graph, model.tail, made.states)
    graph.opset_imports[SITE_DOMAIN] = 1
    return common.IdentityEliminationPass()(graph).model


def _append(model: ir.Model, tail: Tail, states: str) -> None:
    """Append a tail to the graph of its model.

    Args:
        model: The graph of the heads.
        tail: The tail.
        states: Name of the last hidden states in the graph.
    """
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


def _name_sizes(graph: ir.Graph) -> None:
    """Name the sizes that shape inference does not know: all are the number of tokens."""
    for value in (value for node in graph for value in node.outputs):
        if value.shape is not None:
            value.shape = ir.Shape(
                size if isinstance(size, int) or str(size) == "batch" else "sequence"
                for size in value.shape
            )
