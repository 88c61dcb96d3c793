"""Compute self-attention with int8 projections in one ONNX Runtime kernel.

    q, k, v = MatMulIntegerToFloat(x, W_q | W_k | W_v, b_q | b_k | b_v), split into heads
    merge_heads(MatMul(Softmax(MatMul(q, k') * d^-0.5 + mask), v))
        ->  QAttention(x, [W_q W_k W_v], [b_q b_k b_v], Cast(attention_mask))

One int8 matmul makes the three projections, and no head is transposed in memory. Applies after
`integer_matmul`, if all of these hold:

- Query, key and value read the same codes, and only head splits are between them.
- The scores are scaled by `d^-0.5`.
- The mask is 0 or very low, depends on the input `attention_mask` only, and is broadcast over
  queries.

The kernel adds -10000 at [PAD], and transformers adds float32's lowest number. Both give a
probability of exactly 0, unless all scores of a row are below -9900.
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
from qdqbert.graph.passes.attention import (
    HEADS_FIRST,
    HEADS_FIRST_TRANSPOSED,
    integer_mask,
    merged_heads,
    padding_mask,
    scales_by_head_dim,
    split_heads,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Projection:
    """The matmul that computes query, key or value, and its heads."""

    matmul: ir.Node
    heads: int
    head_dim: int


def fuse_integer_attention(model: ir.Model) -> ir.Model:
    """Apply the rewrite; change and return `model`."""
    for node in list(model.graph):
        if node.op_type == "Softmax":
            _fuse(model.graph, node)
    return tidy(model)


def _fuse(graph: ir.Graph, softmax: ir.Node) -> None:
    masked = producer_of(softmax.inputs[0], "Add")
    scaled = producer_of(masked.inputs[0], "Mul") if masked else None
    scores = producer_of(scaled.inputs[0], "MatMul") if scaled else None
    context = only_consumer(softmax.outputs[0])
    if not (masked and scaled and scores and context and context.op_type == "MatMul"):
        return
    merged = merged_heads(context)
    query = _projection(scores.inputs[0], HEADS_FIRST)
    key = _projection(scores.inputs[1], HEADS_FIRST_TRANSPOSED)
    value = _projection(context.inputs[1], HEADS_FIRST)
    if not (merged and query and key and value):
        return
    # Input codes, scale and zero point.
    has_same_input = all(
        part.matmul.inputs[index] is query.matmul.inputs[index]
        for part in (key, value)
        for index in (0, 2, 4)
    )
    mask = padding_mask(masked.inputs[1])
    if has_same_input and mask is not None and scales_by_head_dim(scaled, query.head_dim):
        _replace(graph, merged, (query, key, value), mask)


def _replace(
    graph: ir.Graph, merged: ir.Node, parts: tuple[_Projection, ...], mask: ir.Value
) -> None:
    matmuls = [part.matmul for part in parts]
    name = (matmuls[0].name or "").partition("._weight_quantizer")[0].rpartition(".")[0]
    first = matmuls[0].inputs
    inputs = [
        first[0],
        add_constant(graph, f"{name}.qkv_codes", _joined(matmuls, 1, axis=1)),
        add_constant(graph, f"{name}.qkv_bias", _joined(matmuls, 6)),
        first[2],
        add_constant(graph, f"{name}.qkv_scale", _joined(matmuls, 3)),
        integer_mask(graph, mask),
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
    """Concatenate an input of the three matmuls: codes, biases, or scales for each channel."""
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
    split = split_heads(value, permutation)
    matmul = producer_of(split.source, "MatMulIntegerToFloat", MICROSOFT) if split else None
    if split is None or matmul is None:
        return None
    return _Projection(matmul=matmul, heads=split.heads, head_dim=split.head_dim)
