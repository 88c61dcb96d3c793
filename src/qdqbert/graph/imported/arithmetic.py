"""Compute small parts of a graph in numpy, to recognize their function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from torch import from_numpy, special

from qdqbert.graph.edit import constant_array

Array = NDArray[np.float64]

# LayerNorm and GELU need far fewer nodes.
_LARGEST_REGION = 40


def _erf(x: Array) -> Array:
    result: Array = special.erf(from_numpy(np.ascontiguousarray(x))).numpy()
    return result


_ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Neg": np.negative,
    "Exp": np.exp,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Erf": _erf,
    "Cast": lambda x: x,
    "Identity": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0),
}
_REDUCING: Mapping[str, Callable[..., Array]] = {"ReduceMean": np.mean, "ReduceSum": np.sum}
# Operators that can be computed.
COMPUTABLE = frozenset({*_ELEMENTWISE, *_REDUCING})


def constant(value: ir.Value | None) -> Array | None:
    """Return the float64 array of a constant, also behind casts; `None` for other values."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in ("Cast", "Identity") or node.domain:
            return None
        value = node.inputs[0]
    array = constant_array(value)
    if array is None or array.dtype.kind not in "fiu":
        return None
    return array.astype(np.float64)


def find_region(start: ir.Value, operators: Collection[str]) -> list[ir.Node]:
    """Return the nodes that read only `start`, constants and each other, in topological order.

    Args:
        start: The value that the nodes are a function of.
        operators: Types of the nodes that may be included.
    """
    inside: set[ir.Value] = {start}
    found: list[ir.Node] = []
    waiting = [use.node for use in start.uses()]
    while waiting and len(found) < _LARGEST_REGION:
        node = waiting.pop(0)
        if node in found or node.op_type not in operators or node.domain:
            continue
        variable = [value for value in node.inputs if value is not None and constant(value) is None]
        if any(value not in inside for value in variable):
            # It is visited again once its last input is inside.
            continue
        found.append(node)
        inside.add(node.outputs[0])
        waiting += [use.node for use in node.outputs[0].uses()]
    return found


def compute(nodes: Collection[ir.Node], start: ir.Value, x: Array) -> dict[ir.Value, Array]:
    """Compute the outputs of nodes in float64.

    Args:
        nodes: Result of `find_region` for `start`.
        start: The value that they are a function of.
        x: Its content.

    Raises:
        ValueError: A reduction is not over the last axis alone, or an input is unknown.
    """
    known: dict[ir.Value, Array] = {start: x}

    def value_of(value: ir.Value) -> Array:
        if value in known:
            return known[value]
        array = constant(value)
        if array is None:
            raise ValueError(f"{value.name} is not known")
        return array

    with np.errstate(all="ignore"):
        for node in nodes:
            inputs = [value_of(value) for value in node.inputs if value is not None]
            if node.op_type in _REDUCING:
                known[node.outputs[0]] = _reduce(node, inputs)
            else:
                known[node.outputs[0]] = _ELEMENTWISE[node.op_type](*inputs)
    return known


def _reduce(node: ir.Node, inputs: list[Array]) -> Array:
    if len(inputs) > 1:
        axes = [int(axis) for axis in inputs[1].reshape(-1)]
    else:
        axes = list(node.attributes.get_ints("axes", ()))
    keeps = node.attributes.get_int("keepdims", 1)
    x = inputs[0]
    if axes not in ([-1], [x.ndim - 1]) or not keeps:
        raise ValueError("not over the last axis")
    result: Array = _REDUCING[node.op_type](x, axis=-1, keepdims=True)
    return result
