"""Insert a `qdqbert::Site` node at every place of an existing ONNX model that can be quantized.

The result is treated like a graph that was exported from PyTorch: it has the same names of sites,
the same insertion of Q/DQ pairs and the same targets.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.errors import UserInputError
from qdqbert.graph.edit import add_constant, constant_array, tidy
from qdqbert.graph.imported.roles import LayerRoles, Roles, TableRole
from qdqbert.graph.qdq import SITE_DOMAIN
from qdqbert.spec import (
    Site,
    input_site_of,
    linear_sites,
    matmul_sites,
    residual_sites,
    table_site,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SitedGraph:
    """An existing ONNX model with sites.

    Attributes:
        graph: The graph with `Site` nodes.
        sites: The sites, in order.
        sources: Name of the value that each activation site reads.
        weights: Weight `(out, in)` of each linear layer, by the name of its input's site.
        starts: Name of the value that each layer reads, in order.
        roles: How many parts of each kind were found.
    """

    graph: ir.Model
    sites: tuple[Site, ...]
    sources: dict[str, str]
    weights: dict[str, NDArray[np.float32]]
    starts: tuple[str, ...]
    roles: dict[str, int]


class _Marker:
    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.sites: list[Site] = []
        self.sources: dict[str, str] = {}
        self.weights: dict[str, NDArray[np.float32]] = {}

    def activation(self, node: ir.Node, index: int, site: Site) -> None:
        """Insert a site between a value and one input of a node."""
        source = node.inputs[index]
        assert source is not None
        assert source.name is not None
        marked = self._mark(source, site.name, before=node)
        marked.shape, marked.type = source.shape, source.type
        node.replace_input_with(index, marked)
        self.sites.append(site)
        self.sources[site.name] = source.name

    def weight(self, node: ir.Node, path: str, site: Site) -> None:
        """Insert a site at the weight of a MatMul, stored as `(out, in)` as in torch's `Linear`."""
        array = constant_array(node.inputs[1])
        assert array is not None
        stored = add_constant(self.graph, f"{path}.weight", array.T)
        marked = self._mark(stored, site.name, before=node)
        turned = ir.node("Transpose", [marked], {"perm": [1, 0]}, name=f"{path}.transpose")
        self.graph.insert_before(node, turned)
        node.replace_input_with(1, turned.outputs[0])
        self.sites.append(site)
        # The graph's own memory, not a copy.
        kept = constant_array(stored)
        assert kept is not None
        self.weights[input_site_of(site.name)] = np.require(kept, np.float32, "W")

    def table(self, role: TableRole, site: Site) -> None:
        """Insert a site at an embedding table."""
        source = role.gather.inputs[0]
        assert source is not None
        role.gather.replace_input_with(0, self._mark(source, site.name, before=role.gather))
        self.sites.append(site)

    def _mark(self, source: ir.Value, name: str, *, before: ir.Node) -> ir.Value:
        node = ir.node("Site", [source], {"site": name}, domain=SITE_DOMAIN, name=name)
        node.outputs[0].name = f"{name}.marked"
        self.graph.insert_before(before, node)
        return node.outputs[0]


def mark_sites(model: ir.Model, roles: Roles) -> SitedGraph:
    """Insert sites, named as QDQBERT names its quantizers.

    Args:
        model: A graph in canonical form, changed in place.
        roles: Its parts.

    Raises:
        UserInputError: A MatMul of the attention has heads and texts in one axis.
    """
    marker = _Marker(model)
    for index, layer in enumerate(roles.layers):
        _mark_layer(marker, layer, f"encoder.layer.{index}")
    for table in roles.tables:
        marker.table(table, table_site(f"embeddings.{table.name}"))
    model.opset_imports[SITE_DOMAIN] = 1
    return SitedGraph(
        graph=tidy(model),
        sites=tuple(marker.sites),
        sources=marker.sources,
        weights=marker.weights,
        starts=tuple(layer.start.name or "" for layer in roles.layers),
        roles=roles.counts(),
    )


def _mark_layer(marker: _Marker, layer: LayerRoles, path: str) -> None:
    for linear in layer.linear_layers:
        name = f"{path}.{linear.name}"
        of_input, of_weight = linear_sites(name, linear.source)
        marker.activation(linear.matmul, 0, of_input)
        marker.weight(linear.matmul, name, of_weight)
    matmuls = (
        ("q", layer.scores, 0),
        ("k", layer.scores, 1),
        ("v", layer.context, 1),
        ("a", layer.context, 0),
    )
    sites = matmul_sites(f"{path}.attention.self")
    for letter, node, index in matmuls:
        value = node.inputs[index]
        if value is not None and value.shape is not None and len(value.shape) not in (0, 4):
            raise UserInputError(
                f"Node {node.name!r} multiplies tensors of {len(value.shape)} dimensions; expected "
                "(batch, heads, tokens, width) in an attention."
            )
        marker.activation(node, index, sites[letter])
    for total in layer.residual_adds:
        local, residual = residual_sites(f"{path}.{total.name}")
        marker.activation(total.add, total.local, local)
        marker.activation(total.add, 1 - total.local, residual)
