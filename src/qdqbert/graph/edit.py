"""The few strokes that every rewrite of a graph is made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

MICROSOFT = "com.microsoft"
"""Domain of onnxruntime's own operators."""


def constant_array(value: ir.Value | None) -> NDArray[np.generic] | None:
    """The array of an initializer, or `None` for a value that is known at run time only."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    array: NDArray[np.generic] = value.const_value.numpy()
    return array


def add_constant(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    """An initializer of that name; one that holds the same is used again, another is not."""
    # numpy makes `(1,)` of `()`, and a scale of that shape is one for each index of an axis.
    array = np.ascontiguousarray(array).reshape(array.shape)
    wanted, count = name, 0
    while name in graph.initializers:
        there = constant_array(graph.initializers[name])
        if there is not None and there.dtype == array.dtype and np.array_equal(there, array):
            return graph.initializers[name]
        count += 1
        name = f"{wanted}.{count}"
    tensor = ir.tensor(array, name=name)
    value = ir.val(name, const_value=tensor)
    graph.register_initializer(value)
    return value


def add_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Makes outputs of inner float32 values; those that are outputs already stay as they are."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    outputs = {value.name for value in model.graph.outputs}
    for name in names:
        if name not in outputs:
            value = values[name]
            value.dtype = ir.DataType.FLOAT
            model.graph.outputs.append(value)


def keep_outputs(model: ir.Model, names: Collection[str]) -> None:
    """Drop the outputs of a graph whose names are not listed; nodes stay as they are."""
    for value in list(model.graph.outputs):
        if value.name not in names:
            model.graph.outputs.remove(value)


def producer_of(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that makes a value, if it is of that type."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or node.domain not in (domain, domain or "ai.onnx"):
        return None
    return node


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The node that reads a value, if just one does, once, and it is no output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def bias_of(matmul: ir.Node, *, columns: int) -> tuple[ir.Value | None, ir.Node | None]:
    """The constant that is added to each column of the product, and the node that adds it."""
    add = only_consumer(matmul.outputs[0])
    if add is None or add.op_type != "Add":
        return None, None
    for value in add.inputs:
        array = constant_array(value)
        if array is not None and array.shape == (columns,):
            return value, add
    return None, None


def replace(
    graph: ir.Graph, before: ir.Node, new: ir.Node, *, old: ir.Value, also: Sequence[ir.Node] = ()
) -> None:
    """Inserts `new` in front of `before` and lets its first output stand for `old`.

    Nodes left without readers are removed by `tidy`.

    Args:
        graph: Holds all of them.
        before: Every input of `new` is known where it stands.
        new: The new node, not yet in the graph.
        old: The value that it computes in another way.
        also: Nodes that `new` reads and that are not in the graph yet, in order.
    """
    graph.insert_before(before, [*also, new])
    made = new.outputs[0]
    made.shape, made.type = old.shape, old.type
    name = old.name
    old.replace_all_uses_with(made, replace_graph_outputs=True)
    old.name, made.name = f"{name}_before", name


def tidy(model: ir.Model) -> ir.Model:
    """Removes what nothing reads, merges what is the same, and puts nodes in order."""
    for step in (
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.TopologicalSortPass(),
    ):
        model = step(model).model
    return model
