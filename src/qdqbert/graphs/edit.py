"""Basic edits of a graph."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

MICROSOFT = "com.microsoft"
"""Domain of the operators that ONNX Runtime adds to ONNX."""


def constant_array(value: ir.Value | None) -> NDArray[np.generic] | None:
    """Return the array of an initializer, or `None` if the value is known only at run time."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    array: NDArray[np.generic] = value.const_value.numpy()
    return array


def add_constant(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    """Add an initializer, and return it.

    If the graph has an initializer of that name with the same dtype and values, return that one. If
    the values differ, add a number to the name.
    """
    # `np.ascontiguousarray` turns shape `()` into `(1,)`, which ONNX reads as a scale per channel.
    array = np.ascontiguousarray(array).reshape(array.shape)
    base, count = name, 0
    while name in graph.initializers:
        known = constant_array(graph.initializers[name])
        if known is not None and known.dtype == array.dtype and np.array_equal(known, array):
            return graph.initializers[name]
        count += 1
        name = f"{base}.{count}"
    tensor = ir.tensor(array, name=name)
    value = ir.val(name, const_value=tensor)
    graph.register_initializer(value)
    return value


def producer_of(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """Return the node that computes a value, or `None` if it has a different type or domain."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or node.domain != domain:
        return None
    return node


def only_consumer(value: ir.Value) -> ir.Node | None:
    """Return the only reader of a value.

    Return `None` if the value has several uses or none, or if it is an output of the graph.
    """
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def bias_of(matmul: ir.Node, *, columns: int) -> tuple[ir.Value | None, ir.Node | None]:
    """Return the bias that is added to a matmul, of shape `(columns,)`, and the node that adds it.

    Return `(None, None)` if there is no such bias.
    """
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
    """Insert a node, and replace a value with its first output.

    The output takes over the name, shape and type of the value. The node is inserted directly
    before `before`, after the nodes `also`, which it reads. Call `tidy` afterwards to remove nodes
    without readers.
    """
    graph.insert_before(before, [*also, new])
    made = new.outputs[0]
    made.shape, made.type = old.shape, old.type
    name = old.name
    old.replace_all_uses_with(made, replace_graph_outputs=True)
    old.name, made.name = f"{name}_before", name


def tidy(model: ir.Model) -> ir.Model:
    """Remove unused nodes and opset imports, and sort the nodes topologically."""
    return apply_passes(
        model,
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedOpsetsPass(),
        common.TopologicalSortPass(),
    )


def apply_passes(model: ir.Model, *passes: ir.passes.PassBase) -> ir.Model:
    """Return what passes of onnx_ir make of a model, one after another.

    Their log lines are left out: they say what each pass is called, and nothing of the model.
    """
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        for each in passes:
            model = each(model).model
    finally:
        logger.setLevel(level)
    return model
