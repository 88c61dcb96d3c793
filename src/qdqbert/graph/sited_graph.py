"""A float graph with a node at every site, made of an `EncoderModel`."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes import common

from qdqbert.encoders.model import EncoderModel
from qdqbert.graph.qdq import SITE_DOMAIN
from qdqbert.graph.writer import make_graph
from qdqbert.spec import SiteGroup


def sited_graph(model: EncoderModel, groups: Collection[SiteGroup]) -> ir.Model:
    """Return the float graph of a model, in which every site is a `qdqbert::Site` node.

    Args:
        model: The model in float. The graph shares its arrays.
        groups: Groups of the sites.
    """
    made = make_graph(model, groups)
    graph = ir.from_proto(made.proto)
    for name, array in made.arrays.items():
        graph.graph.initializers[name].const_value = ir.tensor(array, name=name)
    # Shapes pass a site as long as it is an operator of ONNX.
    graph = common.ShapeInferencePass()(graph).model
    for node in graph.graph:
        if node.name in made.sites:
            node.op_type, node.domain = "Site", SITE_DOMAIN
            node.attributes["site"] = ir.AttrString("site", str(node.name))
    if not model.has_choices:
        _name_sizes(graph.graph)
    graph.opset_imports[SITE_DOMAIN] = 1
    return common.IdentityEliminationPass()(graph).model


def _name_sizes(graph: ir.Graph) -> None:
    """Name the sizes that shape inference does not know: all are the number of tokens."""
    for value in (value for node in graph for value in node.outputs):
        if value.shape is not None:
            value.shape = ir.Shape(
                size if isinstance(size, int) or str(size) == "batch" else "sequence"
                for size in value.shape
            )
