"""Read linear layers: a MatMul with a constant matrix, and the Add of its bias."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Linear
from qdqbert.graph.edit import bias_of, constant_array


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearNodes:
    """The nodes of a linear layer.

    Attributes:
        source: The value that the layer reads.
        linear: Its arrays.
        nodes: Its nodes.
    """

    source: ir.Value
    linear: Linear
    nodes: tuple[ir.Node, ...]


def linear_ends(graph: ir.Graph) -> dict[ir.Value, ir.Node]:
    """Return the MatMul of each linear layer, by the layer's output."""
    ends = {}
    for node in graph:
        matrix = _matrix_of(node)
        if matrix is not None:
            _, add = bias_of(node, columns=matrix.shape[1])
            ends[(add or node).outputs[0]] = node
    return ends


def read_linear(matmul: ir.Node) -> LinearNodes:
    """Read the linear layer of a MatMul."""
    matrix, source = _matrix_of(matmul), matmul.inputs[0]
    assert matrix is not None
    assert source is not None
    weight = np.ascontiguousarray(matrix.T, np.float32)
    value, add = bias_of(matmul, columns=len(weight))
    given = constant_array(value)
    bias = np.zeros(len(weight), np.float32) if given is None else given.astype(np.float32)
    return LinearNodes(
        source=source,
        linear=Linear(weight=weight, weight_scale=None, bias=bias, codes=None),
        nodes=(matmul,) if add is None else (matmul, add),
    )


def _matrix_of(node: ir.Node) -> NDArray[np.generic] | None:
    """Return the constant matrix `(in, out)` that a node multiplies by; `None` without one."""
    if node.op_type != "MatMul" or node.domain:
        return None
    array = constant_array(node.inputs[1])
    return array if array is not None and array.ndim == 2 else None
