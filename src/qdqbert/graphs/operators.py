"""Operators that several parts of a graph have: norms, activation functions, constants."""

from __future__ import annotations

import numpy as np

from qdqbert.encoders.model import Activation, Norm
from qdqbert.graphs.nodes import Array, Nodes


def integers(*values: int) -> Array:
    """Return an int64 constant, `(len(values),)`."""
    return np.array(values, np.int64)


def normed(add: Nodes, x: str, norm: Norm | None) -> str:
    """Write a LayerNorm or RMSNorm; `None` changes nothing."""
    if norm is None:
        return x
    if norm.subtracts_mean:
        inputs = (x, norm.weight, norm.bias)
        return add("LayerNormalization", *inputs, axis=-1, epsilon=norm.epsilon)
    mean = add("ReduceMean", add("Pow", x, np.float32(2)), integers(-1))
    size = add("Sqrt", add("Add", mean, np.float32(norm.epsilon)))
    scaled = add("Mul", add("Div", x, size), norm.weight)
    return add("Add", scaled, norm.bias) if norm.bias.any() else scaled


def activated(add: Nodes, x: str, activation: Activation) -> str:
    """Write an activation function."""
    match activation:
        case "gelu":
            return add("Gelu", x)
        case "gelu_tanh":
            return add("Gelu", x, approximate="tanh")
        case "relu":
            return add("Relu", x)
        case "silu":
            return add("Mul", x, add("Sigmoid", x))
        case "tanh":
            return add("Tanh", x)
