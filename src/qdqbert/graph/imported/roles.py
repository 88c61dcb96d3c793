"""Find the parts of each encoder layer by how they are connected, not by their names.

A Softmax between two matmuls of computed tensors is an attention. The linear layers that compute
its three inputs are query, key and value. The linear layer that reads its context is the output,
the next Add of that is the residual add, and so on to the second one. A layer that cannot be
followed is refused.
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
# Most nodes that are visited from one. An encoder layer has fewer than a hundred.
_STEPS = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearRole:
    """A linear layer.

    Attributes:
        name: Its name in BERT's layer, such as `attention.self.query`.
        matmul: The MatMul. Its second input is the weight, `(in, out)`.
        source: The kind of its input.
    """

    name: str
    matmul: ir.Node
    source: Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualAddRole:
    """A residual add.

    Attributes:
        name: Name of the module whose output is added, such as `attention.output`.
        add: The Add.
        local: Index of the input that comes from this module. The other one is the residual.
    """

    name: str
    add: ir.Node
    local: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRoles:
    """The parts of one encoder layer.

    Attributes:
        linear_layers: Query, key, value (or one for all three), attention output, and both of the
            feed-forward block.
        scores: The MatMul of query and key.
        context: The MatMul of probabilities and value.
        residual_adds: The residual adds; that of the attention is first.
        start: The value that the layer reads.
    """

    linear_layers: tuple[LinearRole, ...]
    scores: ir.Node
    context: ir.Node
    residual_adds: tuple[ResidualAddRole, ...]
    start: ir.Value


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRole:
    """An embedding table and the node that looks up its rows.

    Attributes:
        name: Its name by the order of use, such as `table_0_embeddings`.
        gather: The Gather along axis 0.
    """

    name: str
    gather: ir.Node


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roles:
    """All parts of a graph that were found.

    Attributes:
        layers: Encoder layers in order.
        tables: Embedding tables.
        head: Linear layers outside of encoder layers, which stay in float.
    """

    layers: tuple[LayerRoles, ...]
    tables: tuple[TableRole, ...]
    head: tuple[ir.Node, ...]

    def counts(self) -> dict[str, int]:
        """Return how many parts of each kind there are, for the report."""
        found = {"layers": len(self.layers)}
        for layer in self.layers:
            for linear in layer.linear_layers:
                found[linear.name] = found.get(linear.name, 0) + 1
            for name, count in (
                ("scores", 1),
                ("context", 1),
                ("residual adds", len(layer.residual_adds)),
            ):
                found[name] = found.get(name, 0) + count
        return {
            **found,
            "embedding tables": len(self.tables),
            "linear layers of the head": len(self.head),
        }


def find_roles(model: ir.Model) -> Roles:
    """Find the roles of the nodes of a graph in canonical form.

    Raises:
        UserInputError: The graph has no attention, or a layer cannot be followed. The message
            names the node.
    """
    softmaxes = [node for node in model.graph if node.op_type == "Softmax" and not node.domain]
    found = {node: _layer_of(node) for node in softmaxes}
    layers = [layer for layer in found.values() if layer is not None]
    if not layers:
        raise UserInputError(
            f"The graph has no attention ({len(softmaxes)} Softmax nodes, none between two "
            "matmuls of computed tensors): its structure is not that of BERT."
        )
    for node in softmaxes:
        # A head may have a softmax. A layer that is not recognized must not silently stay in float.
        if found[node] is None and _context_matmul(node) is not None:
            raise _not_found(node, "the matmul of query and key that it reads")
    inside = {linear.matmul for layer in layers for linear in layer.linear_layers}
    head = tuple(node for node in model.graph if is_linear(node) and node not in inside)
    return Roles(layers=tuple(layers), tables=_tables(model, layers[0].start), head=head)


def is_linear(node: ir.Node | None) -> bool:
    """Return whether a node multiplies a computed tensor by a constant matrix."""
    if node is None or node.op_type != "MatMul" or node.domain:
        return False
    weight = constant_array(node.inputs[1])
    return weight is not None and weight.ndim == 2 and constant_array(node.inputs[0]) is None


def _layer_of(softmax: ir.Node) -> LayerRoles | None:
    scores = _scores_matmul(softmax)
    context = _context_matmul(softmax)
    if scores is None or context is None:
        return None
    query, key = (_linear_before(scores, index) for index in (0, 1))
    value = _linear_before(context, 1)
    linear_layers = _attention_linear_layers(query, key, value)
    start = query.inputs[0]
    assert start is not None
    output = _next_linear(context.outputs[0], softmax, "the attention's output")
    first_sum = _next_residual_add(output)
    if first_sum is None:
        raise _not_found(output, "the residual add after the attention's output")
    first, second, gated = _feed_forward(first_sum, softmax)
    second_sum = _next_residual_add(second)
    if second_sum is None:
        raise _not_found(second, "the residual add after the feed-forward block")
    return LayerRoles(
        linear_layers=(
            *linear_layers,
            LinearRole(name="attention.output.dense", matmul=output, source="attention"),
            LinearRole(name="intermediate.dense", matmul=first, source="norm"),
            LinearRole(
                name="output.dense", matmul=second, source="gate" if gated else "activation"
            ),
        ),
        scores=scores,
        context=context,
        residual_adds=(
            ResidualAddRole(name="attention.output", add=first_sum[0], local=first_sum[1]),
            ResidualAddRole(name="output", add=second_sum[0], local=second_sum[1]),
        ),
        start=start,
    )


def _attention_linear_layers(
    query: ir.Node, key: ir.Node, value: ir.Node
) -> tuple[LinearRole, ...]:
    if query is key is value:
        return (LinearRole(name="attention.self.qkv", matmul=query, source="norm"),)
    return tuple(
        LinearRole(name=f"attention.self.{name}", matmul=node, source="norm")
        for name, node in (("query", query), ("key", key), ("value", value))
    )


def _scores_matmul(softmax: ir.Node) -> ir.Node | None:
    """Return the matmul whose two inputs come from linear layers that read one tensor."""
    for node in _backwards(softmax.inputs[0]):
        if node.op_type != "MatMul" or node.domain or is_linear(node):
            continue
        sides = [_linear_layers_before(value) for value in node.inputs]
        if len(sides[0]) == len(sides[1]) == 1 and sides[0][0].inputs[0] is sides[1][0].inputs[0]:
            return node
    return None


def _context_matmul(softmax: ir.Node) -> ir.Node | None:
    for node in _forwards(softmax.outputs[0], through=("Where", "Cast", "Identity", "IsNaN")):
        if node.op_type == "MatMul" and not node.domain and not is_linear(node):
            return node
    return None


def _linear_before(matmul: ir.Node, index: int) -> ir.Node:
    found = _linear_layers_before(matmul.inputs[index])
    if len(found) != 1:
        raise _not_found(
            matmul, f"the linear layer that computes its input {index} ({len(found)} found)"
        )
    return found[0]


def _linear_layers_before(value: ir.Value | None) -> list[ir.Node]:
    """Return the nearest linear layers that a value depends on, with no LayerNorm in between."""
    return [node for node in _backwards(value, stop=(_NORM, "Softmax")) if is_linear(node)]


def _next_linear(value: ir.Value, within: ir.Node, what: str) -> ir.Node:
    for node in _forwards(value, through=None):
        if is_linear(node):
            return node
    raise _not_found(within, what)


def _next_residual_add(linear: ir.Node) -> tuple[ir.Node, int] | None:
    """Return the first Add of two computed tensors after a linear layer, and its local side."""
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
    """Return both linear layers, and whether the second reads an activation times a gate."""
    first: ir.Node | None = None
    for node in _forwards(first_sum[0].outputs[0], through=(_NORM, "Cast", "Identity", "Reshape")):
        if is_linear(node):
            first = node
            break
    if first is None:
        raise _not_found(softmax, "the first linear layer of the feed-forward block")
    reached = list(_forwards(first.outputs[0], through=None, stop_at_linear_layers=True))
    second = next((node for node in reached if is_linear(node)), None)
    if second is None:
        raise _not_found(first, "the second linear layer of the feed-forward block")
    made = second.inputs[0].producer() if second.inputs[0] is not None else None
    if not any(node.op_type in _ACTIVATIONS for node in reached):
        raise _not_found(first, "the activation function of the feed-forward block")
    gated = (
        made is not None
        and made.op_type == "Mul"
        and all(constant_array(each) is None for each in made.inputs)
    )
    return first, second, gated


def _tables(model: ir.Model, start: ir.Value) -> tuple[TableRole, ...]:
    """Return the embedding tables before the first layer."""
    before = set(_backwards(start, limit=10 * _STEPS, through_linear_layers=True))
    found: list[TableRole] = []
    for node in model.graph:
        if node not in before or node.op_type != "Gather" or node.domain:
            continue
        source = node.inputs[0]
        table = constant_array(source)
        axis = node.attributes.get_int("axis", 0)
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
    through_linear_layers: bool = False,
) -> Iterator[ir.Node]:
    """Yield the nodes that a value depends on, nearest first; linear layers end a path."""
    waiting = [value]
    seen: set[ir.Node] = set()
    while waiting and len(seen) < limit:
        value = waiting.pop(0)
        node = value.producer() if value is not None else None
        # A Shape passes on no values.
        if node is None or node in seen or node.op_type in (*stop, "Shape"):
            continue
        seen.add(node)
        yield node
        if through_linear_layers or not is_linear(node):
            waiting += list(node.inputs)


def _forwards(
    value: ir.Value, *, through: tuple[str, ...] | None, stop_at_linear_layers: bool = False
) -> Iterator[ir.Node]:
    """Yield the nodes that read a value, nearest first, and the readers of nodes `through`."""
    waiting = [value]
    seen: set[ir.Node] = set()
    while waiting and len(seen) < _STEPS:
        for use in waiting.pop(0).uses():
            node = use.node
            if node in seen:
                continue
            seen.add(node)
            yield node
            if stop_at_linear_layers and is_linear(node):
                continue
            if through is None or node.op_type in through:
                waiting += list(node.outputs)


def _not_found(node: ir.Node, what: str) -> UserInputError:
    return UserInputError(
        f"The structure of the graph is not that of BERT: from node {node.name!r} "
        f"({node.op_type}), {what} could not be found."
    )
