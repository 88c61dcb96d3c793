"""Finds the parts of each encoder layer by how they are connected, not by what they are called.

A softmax between two products of computed tensors is an attention. The linears behind its three
inputs are query, key and value, the linear that reads its context is the output's, the next Add of
that is the residual sum, and so on to the second sum. What cannot be followed is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import onnx_ir as ir

from qdqbert.errors import UserInputError
from qdqbert.graph.edit import constant_array
from qdqbert.spec import Source

_NORM = "LayerNormalization"
_ACTIVATIONS = ("Gelu", "Relu", "Tanh", "Sigmoid", "Elu", "Mish", "HardSwish")
_STEPS = 400
# Most nodes that are followed from one: an encoder layer has fewer than a hundred.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearRole:
    """A product with a constant weight.

    Attributes:
        name: What it is in its layer, as BERT calls it: `attention.self.query`.
        product: The MatMul; its second input is the weight, `(in, out)`.
        source: What its input is.
    """

    name: str
    product: ir.Node
    source: Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumRole:
    """A residual add.

    Attributes:
        name: Of the module whose output is added: `attention.output`.
        add: The Add.
        local: Which of its inputs comes from that module; the other is the residual.
    """

    name: str
    add: ir.Node
    local: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRoles:
    """The parts of one encoder layer.

    Attributes:
        linears: Query, key, value (or one for all three), attention output, both of the FFN.
        scores: The product of query and key.
        context: The product of probabilities and value.
        sums: The residual adds, that of the attention first.
        start: What the layer reads.
    """

    linears: tuple[LinearRole, ...]
    scores: ir.Node
    context: ir.Node
    sums: tuple[SumRole, ...]
    start: ir.Value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRole:
    """An embedding table and the node that looks rows of it up.

    Attributes:
        name: `embeddings.word_embeddings` and so on, by the order of their use.
        gather: The Gather along axis 0.
    """

    name: str
    gather: ir.Node


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roles:
    """All parts that were found.

    Attributes:
        layers: Encoder layers in order.
        tables: Embedding tables.
        head: Linears behind the last layer, which stay in float.
    """

    layers: tuple[LayerRoles, ...]
    tables: tuple[TableRole, ...]
    head: tuple[ir.Node, ...]

    def counts(self) -> dict[str, int]:
        """How many of each there are, for people."""
        found = {"layers": len(self.layers)}
        for layer in self.layers:
            for linear in layer.linears:
                found[linear.name] = found.get(linear.name, 0) + 1
            for name, count in (
                ("scores", 1),
                ("context", 1),
                ("residual adds", len(layer.sums)),
            ):
                found[name] = found.get(name, 0) + count
        return {**found, "embedding tables": len(self.tables), "head linears": len(self.head)}


def find_roles(model: ir.Model) -> Roles:
    """The roles of a graph in normal form.

    Raises:
        UserInputError: There is no attention in it, or a layer cannot be followed; names the node.
    """
    softmaxes = [node for node in model.graph if node.op_type == "Softmax" and not node.domain]
    found = {node: _layer_of(node) for node in softmaxes}
    layers = [layer for layer in found.values() if layer is not None]
    if not layers:
        raise UserInputError(
            f"The graph has no attention ({len(softmaxes)} Softmax nodes, none between two "
            "products of computed tensors): it is not of BERT's shape."
        )
    for node in softmaxes:
        # A head may have a softmax; a layer that is not understood would stay in float unsaid.
        if found[node] is None and _product_behind(node) is not None:
            raise _lost(node, "the product of query and key that it is taken of")
    inside = {linear.product for layer in layers for linear in layer.linears}
    head = tuple(node for node in model.graph if is_linear(node) and node not in inside)
    return Roles(layers=tuple(layers), tables=_tables(model, layers[0].start), head=head)


def is_linear(node: ir.Node | None) -> bool:
    """Whether a node multiplies a computed tensor by a constant matrix."""
    if node is None or node.op_type != "MatMul" or node.domain:
        return False
    weight = constant_array(node.inputs[1])
    return weight is not None and weight.ndim == 2 and constant_array(node.inputs[0]) is None


def _layer_of(softmax: ir.Node) -> LayerRoles | None:
    scores = _product_before(softmax)
    context = _product_behind(softmax)
    if scores is None or context is None:
        return None
    query, key = (_linear_behind(scores, index) for index in (0, 1))
    value = _linear_behind(context, 1)
    linears = _attention_linears(query, key, value)
    start = query.inputs[0]
    assert start is not None
    output = _next_linear(context.outputs[0], softmax, "the attention's output")
    first_sum = _next_sum(output)
    if first_sum is None:
        raise _lost(output, "the residual add behind the attention's output")
    first, second, gated = _feed_forward(first_sum, softmax)
    second_sum = _next_sum(second)
    if second_sum is None:
        raise _lost(second, "the residual add behind the feed-forward block")
    return LayerRoles(
        linears=(
            *linears,
            LinearRole(name="attention.output.dense", product=output, source="attention"),
            LinearRole(name="intermediate.dense", product=first, source="norm"),
            LinearRole(
                name="output.dense", product=second, source="gate" if gated else "activation"
            ),
        ),
        scores=scores,
        context=context,
        sums=(
            SumRole(name="attention.output", add=first_sum[0], local=first_sum[1]),
            SumRole(name="output", add=second_sum[0], local=second_sum[1]),
        ),
        start=start,
    )


def _attention_linears(query: ir.Node, key: ir.Node, value: ir.Node) -> tuple[LinearRole, ...]:
    if query is key is value:
        return (LinearRole(name="attention.self.qkv", product=query, source="norm"),)
    return tuple(
        LinearRole(name=f"attention.self.{name}", product=node, source="norm")
        for name, node in (("query", query), ("key", key), ("value", value))
    )


def _product_before(softmax: ir.Node) -> ir.Node | None:
    """The product whose two sides come from linears that read one tensor."""
    for node in _backwards(softmax.inputs[0]):
        if node.op_type != "MatMul" or node.domain or is_linear(node):
            continue
        sides = [_linears_before(value) for value in node.inputs]
        if len(sides[0]) == len(sides[1]) == 1 and sides[0][0].inputs[0] is sides[1][0].inputs[0]:
            return node
    return None


def _product_behind(softmax: ir.Node) -> ir.Node | None:
    for node in _forwards(softmax.outputs[0], through=("Where", "Cast", "Identity", "IsNaN")):
        if node.op_type == "MatMul" and not node.domain and not is_linear(node):
            return node
    return None


def _linear_behind(product: ir.Node, index: int) -> ir.Node:
    found = _linears_before(product.inputs[index])
    if len(found) != 1:
        raise _lost(product, f"the linear that makes its input {index} ({len(found)} found)")
    return found[0]


def _linears_before(value: ir.Value | None) -> list[ir.Node]:
    """Linears that a value is computed of, without passing through one or through a LayerNorm."""
    return [node for node in _backwards(value, stop=(_NORM, "Softmax")) if is_linear(node)]


def _next_linear(value: ir.Value, within: ir.Node, what: str) -> ir.Node:
    for node in _forwards(value, through=None):
        if is_linear(node):
            return node
    raise _lost(within, what)


def _next_sum(linear: ir.Node) -> tuple[ir.Node, int] | None:
    """The first Add of two computed tensors of like shape behind a linear, and the local side."""
    value = linear.outputs[0]
    for _ in range(6):
        uses = [use for use in value.uses() if not _only_passes_on(use.node)]
        if len(uses) != 1:
            return None
        node = uses[0].node
        if node.op_type == "Add" and all(constant_array(each) is None for each in node.inputs):
            return node, uses[0].idx
        if node.op_type not in ("Add", "Cast", "Identity", "Reshape", "Mul"):
            return None
        value = node.outputs[0]
    return None


def _only_passes_on(node: ir.Node) -> bool:
    """Return whether a node reads a shape, or copies a value to an output of the graph."""
    is_copy = node.op_type == "Identity" and node.outputs[0].is_graph_output()
    return is_copy or node.op_type == "Shape"


def _feed_forward(
    first_sum: tuple[ir.Node, int], softmax: ir.Node
) -> tuple[ir.Node, ir.Node, bool]:
    """Both linears, and whether what the second reads is an activation times a gate."""
    first: ir.Node | None = None
    for node in _forwards(first_sum[0].outputs[0], through=(_NORM, "Cast", "Identity", "Reshape")):
        if is_linear(node):
            first = node
            break
    if first is None:
        raise _lost(softmax, "the first linear of the feed-forward block")
    reached = list(_forwards(first.outputs[0], through=None, stop_at_linears=True))
    second = next((node for node in reached if is_linear(node)), None)
    if second is None:
        raise _lost(first, "the second linear of the feed-forward block")
    made = second.inputs[0].producer() if second.inputs[0] is not None else None
    if not any(node.op_type in _ACTIVATIONS for node in reached):
        raise _lost(first, "the activation function of the feed-forward block")
    gated = (
        made is not None
        and made.op_type == "Mul"
        and all(constant_array(each) is None for each in made.inputs)
    )
    return first, second, gated


def _tables(model: ir.Model, start: ir.Value) -> tuple[TableRole, ...]:
    """Tables that rows are looked up in, before the first layer."""
    before = set(_backwards(start, limit=10 * _STEPS, through_linears=True))
    found: list[TableRole] = []
    for node in model.graph:
        if node not in before or node.op_type != "Gather" or node.domain:
            continue
        source = node.inputs[0]
        table = constant_array(source)
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if table is None or table.ndim != 2 or axis != 0 or table.dtype.kind != "f":
            continue
        assert source is not None
        if len(list(source.uses())) != 1 or min(table.shape) < 2:
            continue
        found.append(TableRole(name=f"table_{len(found)}_embeddings", gather=node))
    return tuple(found)


def _backwards(
    value: ir.Value | None,
    *,
    stop: tuple[str, ...] = (),
    limit: int = _STEPS,
    through_linears: bool = False,
) -> Iterator[ir.Node]:
    """Nodes that a value is computed of, nearest first; linears end a path."""
    waiting = [value]
    seen: set[ir.Node] = set()
    while waiting and len(seen) < limit:
        value = waiting.pop(0)
        node = value.producer() if value is not None else None
        # What only passes a shape on is no value.
        if node is None or node in seen or node.op_type in (*stop, "Shape"):
            continue
        seen.add(node)
        yield node
        if through_linears or not is_linear(node):
            waiting += list(node.inputs)


def _forwards(
    value: ir.Value, *, through: tuple[str, ...] | None, stop_at_linears: bool = False
) -> Iterator[ir.Node]:
    """Nodes that read a value, nearest first, and those that read what nodes `through` make."""
    waiting = [value]
    seen: set[ir.Node] = set()
    while waiting and len(seen) < _STEPS:
        for use in waiting.pop(0).uses():
            node = use.node
            if node in seen:
                continue
            seen.add(node)
            yield node
            if stop_at_linears and is_linear(node):
                continue
            if through is None or node.op_type in through:
                waiting += list(node.outputs)


def _lost(node: ir.Node, what: str) -> UserInputError:
    return UserInputError(
        f"The graph is not of BERT's shape: from node {node.name!r} ({node.op_type}), {what} could "
        "not be found."
    )
