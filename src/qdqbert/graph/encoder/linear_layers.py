"""Read linear layers: a MatMul or Gemm with a constant matrix, its bias and its Q/DQ pairs."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Floats, Linear
from qdqbert.graph.edit import bias_of, constant_array
from qdqbert.graph.encoder.quantization import linear_codes, pair_of, split_channel_factor
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.shared_table import read_shared_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearNodes:
    """The nodes of a linear layer.

    Attributes:
        source: The value that the layer reads, before `pre_quant_scale` and the Q/DQ pair.
        end: The layer's output.
        linear: Its arrays.
        nodes: Its nodes.
    """

    source: ir.Value
    end: ir.Value
    linear: Linear
    nodes: tuple[ir.Node, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Matrix:
    """A constant matrix `(in, out)` as MatMul reads it.

    Attributes:
        stored: What is stored: the matrix or its transpose, float or codes.
        is_transposed: Whether it is `(out, in)`.
        dequantize: The DequantizeLinear of codes; `None` in float.
        axis: Its axis, of the stored array.
        nodes: All nodes in between.
    """

    stored: NDArray[np.generic]
    is_transposed: bool
    dequantize: ir.Node | None
    axis: int
    nodes: tuple[ir.Node, ...]

    @property
    def columns(self) -> int:
        """Number of outputs."""
        return int(self.stored.shape[0 if self.is_transposed else 1])


def linear_ends(graph: ir.Graph) -> dict[ir.Value, ir.Node]:
    """Return the MatMul or Gemm of each linear layer, by the layer's output."""
    ends = {}
    for node in graph:
        matrix = _matrix_of(node)
        if matrix is not None:
            _, add = bias_of(node, columns=matrix.columns)
            ends[(add or node).outputs[0]] = node
    return ends


def read_linear(end: ir.Value, matmul: ir.Node) -> LinearNodes:
    """Read a linear layer.

    Args:
        end: Its output.
        matmul: Its MatMul or Gemm.

    Raises:
        GraphError: It is quantized in a way that the engine does not compute.
    """
    matrix = _matrix_of(matmul)
    assert matrix is not None
    weight, weight_scale = _weight_of(matrix)
    source = matmul.inputs[0]
    assert source is not None
    nodes = [matmul, *matrix.nodes]
    codes = None
    pair = pair_of(source)
    if pair is not None:
        quantized = pair[0].inputs[0]
        assert quantized is not None
        source, factor = quantized, None
        scaled = split_channel_factor(quantized)
        if scaled is not None and scaled[1].shape == weight.shape[1:]:
            source, factor, mul = scaled
            nodes.append(mul)
        codes = linear_codes(*pair, factor)
        nodes += pair
    if codes is None and weight_scale is not None:
        # Only the weight is quantized.
        weight, weight_scale = weight * weight_scale[:, None], None
    if codes is not None and weight_scale is None:
        raise refuse(matmul, "has a quantized input and a float weight")
    bias, add = _bias_of(matmul, len(weight))
    nodes += [] if add is None else [add]
    linear = Linear(weight=weight, weight_scale=weight_scale, bias=bias, codes=codes)
    return LinearNodes(source=source, end=end, linear=linear, nodes=tuple(nodes))


def _matrix_of(node: ir.Node) -> _Matrix | None:
    """Return the constant matrix that a node multiplies by; `None` if there is none."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain:
        return None
    is_transposed = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    value, dequantize, axis = node.inputs[1], None, 1
    nodes: list[ir.Node] = []
    table = None
    while value is not None and (made := value.producer()) is not None:
        table = read_shared_table(value)
        if table is not None:
            nodes += table[1]
            break
        if made.domain or made.op_type not in ("Transpose", "DequantizeLinear"):
            return None
        if made.op_type == "Transpose":
            is_transposed = not is_transposed
        else:
            dequantize, axis = made, made.attributes.get_int("axis", 1)
        nodes.append(made)
        value = made.inputs[0]
    stored = constant_array(value) if table is None else table[0]
    if stored is None or stored.ndim != 2:
        return None
    return _Matrix(
        stored=stored,
        is_transposed=is_transposed,
        dequantize=dequantize,
        axis=axis % 2,
        nodes=tuple(nodes),
    )


def _weight_of(matrix: _Matrix) -> tuple[NDArray[np.int8] | Floats, Floats | None]:
    """Return the weight `(out, in)`, and the scale `(out,)` of its codes."""
    turned = matrix.stored if matrix.is_transposed else matrix.stored.T
    node = matrix.dequantize
    if node is None:
        return np.ascontiguousarray(turned, dtype=np.float32), None
    scale = constant_array(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero_point = np.zeros((), np.int8) if given is None else constant_array(given)
    if matrix.stored.dtype != np.int8 or scale is None or zero_point is None:
        raise refuse(node, f"has a weight of type {matrix.stored.dtype}, not int8")
    if zero_point.any():
        raise refuse(node, "has a weight with a zero point")
    out_axis = 0 if matrix.is_transposed else 1
    if scale.size > 1 and (scale.shape != (matrix.columns,) or matrix.axis != out_axis):
        raise refuse(node, "has a weight without one scale for each output channel")
    scales = np.broadcast_to(scale.astype(np.float32).reshape(-1), (matrix.columns,))
    return np.ascontiguousarray(turned).astype(np.int8), np.ascontiguousarray(scales)


def _bias_of(matmul: ir.Node, columns: int) -> tuple[Floats, ir.Node | None]:
    """Return the bias `(out,)`, and the node that adds it, if it is another one."""
    value, add = bias_of(matmul, columns=columns)
    if matmul.op_type == "Gemm":
        attributes = matmul.attributes
        factors = [attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        if factors != [1, 1] or attributes.get_int("transA", 0) != 0:
            raise refuse(matmul, "has a factor or a transposed input")
        if len(matmul.inputs) > 2 and matmul.inputs[2] is not None:
            if add is not None:
                raise refuse(matmul, "has two biases")
            value = matmul.inputs[2]
    bias = constant_array(value)
    if value is not None and (bias is None or bias.size not in (1, columns)):
        raise refuse(matmul, "has a bias that is not a constant for each output")
    made = np.zeros(columns, np.float32)
    if bias is not None:
        made += bias.astype(np.float32).reshape(-1)
    return made, add
