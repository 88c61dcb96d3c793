"""Computes self-attention with int8 projections in one onnxruntime kernel.

    q, k, v = MatMulIntegerToFloat(x, W_q | W_k | W_v, b_q | b_k | b_v), split into heads
    merge_heads(MatMul(Softmax(MatMul(q, k') * d^-0.5 + mask), v))
        ->  QAttention(x, [W_q W_k W_v], [b_q b_k b_v], Cast(attention_mask))

One int8 product makes the three projections, and no head is ever transposed in memory. Fires
after `integer_matmul`, where query, key and value read the same codes, nothing but head splits
stands between, the factor is `d^-0.5`, and the mask is 0 or very low as the input `attention_mask`
alone says, and is broadcast over queries. The kernel adds -10000 at [PAD] where transformers adds
float32's lowest: both give a probability of exactly 0 unless all scores of a row are below -9900.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.graph.edit import (
    MICROSOFT,
    add_constant,
    constant_array,
    only_consumer,
    producer_of,
    replace,
    tidy,
)

_MASK = "attention_mask"
_LOW = -1e4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Projection:
    """One of query, key and value: the product that makes it, and its heads."""

    matmul: ir.Node
    heads: int
    head_dim: int


def fuse_integer_attention(model: ir.Model) -> ir.Model:
    """The rewrite; changes and returns `model`."""
    for node in list(model.graph):
        if node.op_type == "Softmax":
            _fuse(model.graph, node)
    return tidy(model)


def _fuse(graph: ir.Graph, softmax: ir.Node) -> None:
    axis = softmax.attributes.get("axis")
    if axis is not None and axis.as_int() not in (-1, 3):
        return
    masked = producer_of(softmax.inputs[0], "Add")
    scaled = producer_of(masked.inputs[0], "Mul") if masked else None
    scores = producer_of(scaled.inputs[0], "MatMul") if scaled else None
    context = only_consumer(softmax.outputs[0])
    if not (masked and scaled and scores and context and context.op_type == "MatMul"):
        return
    merged = _merged_heads(context)
    query = _projection(scores.inputs[0], (0, 2, 1, 3))
    key = _projection(scores.inputs[1], (0, 2, 3, 1))
    value = _projection(context.inputs[1], (0, 2, 1, 3))
    if not (merged and query and key and value):
        return
    factor = constant_array(scaled.inputs[1])
    same_input = all(
        part.matmul.inputs[index] is query.matmul.inputs[index]
        for part in (key, value)
        for index in (0, 2, 4)
    )
    if (
        not same_input
        or factor is None
        or not np.isclose(float(factor.reshape(-1)[0]), query.head_dim**-0.5)
        or not _is_padding_mask(masked.inputs[1])
    ):
        return
    _replace(graph, merged, (query, key, value))


def _replace(graph: ir.Graph, merged: ir.Node, parts: tuple[_Projection, ...]) -> None:
    matmuls = [part.matmul for part in parts]
    name = (matmuls[0].name or "").partition("._weight_quantizer")[0].rpartition(".")[0]
    first = matmuls[0].inputs
    inputs = [
        first[0],
        add_constant(graph, f"{name}.qkv_codes", _joined(matmuls, 1, axis=1)),
        add_constant(graph, f"{name}.qkv_bias", _joined(matmuls, 6)),
        first[2],
        add_constant(graph, f"{name}.qkv_scale", _joined(matmuls, 3)),
        _integer_mask(graph),
        first[4],
        add_constant(graph, f"{name}.qkv_zero_point", _joined(matmuls, 5)),
    ]
    attention = ir.node(
        "QAttention",
        inputs,
        {"num_heads": parts[0].heads},
        domain=MICROSOFT,
        name=f"{name}.attention",
    )
    replace(graph, merged, attention, old=merged.outputs[0])


def _joined(matmuls: list[ir.Node], index: int, axis: int = 0) -> NDArray[np.generic]:
    """Constants of the three products side by side: codes, scales (spread out) or biases."""
    arrays = []
    for matmul in matmuls:
        width = _array(matmul, 1).shape[1]
        missing = index >= len(matmul.inputs)
        array = np.zeros(width, np.float32) if missing else _array(matmul, index)
        arrays.append(np.broadcast_to(array, (width,)) if array.ndim < 2 else array)
    return np.concatenate(arrays, axis=axis)


def _array(node: ir.Node, index: int) -> NDArray[np.generic]:
    array = constant_array(node.inputs[index])
    assert array is not None
    return array


def _projection(value: ir.Value | None, permutation: tuple[int, ...]) -> _Projection | None:
    transpose = producer_of(value, "Transpose")
    if transpose is None or tuple(transpose.attributes["perm"].as_ints()) != permutation:
        return None
    reshape = producer_of(transpose.inputs[0], "Reshape")
    matmul = producer_of(reshape.inputs[0], "MatMulIntegerToFloat", MICROSOFT) if reshape else None
    shape = reshape.outputs[0].shape if reshape else None
    if reshape is None or matmul is None or shape is None or len(shape) != 4:
        return None
    heads, head_dim = shape[2], shape[3]
    if not isinstance(heads, int) or not isinstance(head_dim, int):
        return None
    return _Projection(matmul=matmul, heads=heads, head_dim=head_dim)


def _merged_heads(context: ir.Node) -> ir.Node | None:
    """The reshape that puts the heads of `(batch, heads, seq, head_dim)` side by side again."""
    transpose = only_consumer(context.outputs[0])
    if transpose is None or transpose.op_type != "Transpose":
        return None
    if tuple(transpose.attributes["perm"].as_ints()) != (0, 2, 1, 3):
        return None
    reshape = only_consumer(transpose.outputs[0])
    return reshape if reshape is not None and reshape.op_type == "Reshape" else None


def _is_padding_mask(value: ir.Value | None) -> bool:
    """Whether a value is 0 or very low by `attention_mask` alone, and equal for all queries."""
    if value is None or value.shape is None or len(value.shape) != 4 or value.shape[2] != 1:
        return False
    chosen = producer_of(value, "Where")
    low, zero = (constant_array(each) for each in chosen.inputs[1:]) if chosen else (None, None)
    if low is None or zero is None or low.max() > _LOW or zero.any():
        return False
    inputs, stack = set(), [value]
    while stack:
        current = stack.pop()
        if current.is_graph_input():
            inputs.add(current.name)
        node = current.producer()
        stack += [source for source in node.inputs if source is not None] if node else []
    return inputs == {_MASK}


def _integer_mask(graph: ir.Graph) -> ir.Value:
    """`attention_mask` as int32, `(batch, seq)`, made once at the start of the graph."""
    source = next(value for value in graph.inputs if value.name == _MASK)
    for node in source.consumers():
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.INT32:
            return node.outputs[0]
    cast = ir.node("Cast", [source], {"to": ir.DataType.INT32}, name="attention_mask.int32")
    graph.insert_before(graph[0], cast)
    return cast.outputs[0]
