"""Decompose fused operators, so that the tensors between their steps can be quantized.

onnxruntime's transformer optimizer and ONNX 23 have operators for whole blocks. Each is replaced
with plain ONNX operators, as its documentation defines it.

Source: onnxruntime, `docs/ContribOperators.md`; ONNX operator Attention, version 23.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.edit import MICROSOFT, constant_array
from qdqbert.graphs.imported.node_builder import Build, Builder, replace_nodes

# Default of onnxruntime's attribute `mask_filter_value`.
_LOWEST = -1e4
_LOWEST_FLOAT = float(np.finfo(np.float32).min)


def _gelu(b: Builder) -> dict[int, ir.Value]:
    x, bias = b.inputs(2)
    form = {"approximate": "tanh"} if b.node.op_type == "FastGelu" else {}
    return {0: b("Gelu", x if bias is None else b("Add", x, bias), **form)}


def _skip_layer_norm(b: Builder) -> dict[int, ir.Value]:
    """Output 0 is the result, and output 3 the sum."""
    x, skip, scale, shift, bias = b.inputs(5)
    total = b("Add", x if bias is None else b("Add", x, bias), skip)
    return {0: _layer_norm(b, total, scale, shift), 3: total}


def _embed_layer_norm(b: Builder) -> dict[int, ir.Value]:
    """Output 0 is the result, output 1 the lengths of the texts, and output 2 the sum."""
    ids, segments, words, places, types, scale, shift, mask, positions = b.inputs(9)
    if positions is None:
        length = b("Gather", b("Shape", ids), 1, axis=0)
        positions = b("Unsqueeze", b("Range", 0, length, 1), [0])
    total = b("Gather", words, ids, axis=0)
    total = b("Add", total, b("Gather", places, positions, axis=0))
    if segments is not None and types is not None:
        total = b("Add", total, b("Gather", types, segments, axis=0))
    made = {0: _layer_norm(b, total, scale, shift), 2: total}
    if mask is not None:
        made[1] = b("ReduceSum", mask, [1], keepdims=0)
        made[1].shape = ir.Shape(["batch"])
        made[1].dtype = mask.dtype or ir.DataType.INT32
    return made


def _attention(b: Builder) -> dict[int, ir.Value]:
    """onnxruntime's, with one weight `(hidden, 3 * hidden)` and bias for query, key, value."""
    x, weights, biases, mask = b.inputs(4)
    b.refuse_attributes("do_rotary")
    heads, unidirectional = (b.attributes.get_int(x, 0) for x in ("num_heads", "unidirectional"))
    weight, bias = constant_array(weights), constant_array(biases)
    if weight is None or unidirectional or "qkv_hidden_sizes" in b.attributes:
        raise UserInputError(
            f"Node {b.node.name!r} (Attention) is not supported: expected a constant weight, "
            "query, key and value of one size, and attention in both directions."
        )
    parts = []
    for index, part in enumerate(np.split(weight, 3, axis=1)):
        made = b("MatMul", x, part)
        parts.append(made if bias is None else b("Add", made, np.split(bias, 3)[index]))
    return {0: _of_heads(b, parts, heads, weight.shape[1] // 3, _padding_mask(b, x, mask))}


def _multi_head_attention(b: Builder) -> dict[int, ir.Value]:
    """onnxruntime's, with a mask of padding, and one that is added to the scores."""
    *states, biases, padding, added = b.inputs(6)
    b.refuse_attributes("unidirectional")
    if any(each is None or (each.shape is not None and len(each.shape) != 3) for each in states):
        raise UserInputError(
            f"Node {b.node.name!r} (MultiHeadAttention) takes packed query, key and value. Export "
            "the graph again without fusing it."
        )
    bias, shape = constant_array(biases), states[0].shape if states[0] is not None else None
    width = shape[-1] if shape is not None else None
    if bias is not None:
        width = len(bias) // 3
        states = [b("Add", *each) for each in zip(states, np.split(bias, 3), strict=True)]
    if not isinstance(width, int):
        raise UserInputError(
            "The graph does not contain the width of its attention. Export it again with shapes."
        )
    mask = _padding_mask(b, states[0], padding)
    if added is not None:
        mask = added if mask is None else b("Add", mask, added)
    return {0: _of_heads(b, states, b.attributes.get_int("num_heads", 0), width, mask)}


def _onnx_attention(b: Builder) -> dict[int, ir.Value]:
    """ONNX's, with inputs `(batch, heads, seq, head_dim)` and a bool or additive mask."""
    *parts, mask = b.inputs(4)
    b.refuse_attributes("softcap", "is_causal")
    if "q_num_heads" in b.attributes:
        raise UserInputError(
            f"Node {b.node.name!r} (Attention) is not supported: expected inputs of four "
            "dimensions. Export the graph again with an opset before 23."
        )
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        mask = b("Where", mask, 0.0, _LOWEST_FLOAT)
    scale: ir.Value | float | None = b.attributes.get_float("scale", None)
    if scale is None:
        size = b("Gather", b("Shape", parts[0]), -1, axis=0)
        scale = b("Reciprocal", b("Sqrt", b("Cast", size, to=ir.DataType.FLOAT)))
    return {0: _context(b, parts, mask, scale)}


def _fused_matmul(b: Builder) -> dict[int, ir.Value]:
    """Computes `alpha * A' B'`, where the last two axes of each may be transposed."""
    b.refuse_attributes("transBatchA", "transBatchB")
    sides = []
    for side, name in zip(b.inputs(2), ("transA", "transB"), strict=True):
        if b.attributes.get_int(name, 0):
            axes = list(range(4 if side is None or side.shape is None else len(side.shape)))
            side = b("Transpose", side, perm=[*axes[:-2], axes[-1], axes[-2]])
        sides.append(side)
    product, alpha = b("MatMul", *sides), b.attributes.get_float("alpha", 1.0)
    return {0: product if alpha == 1.0 else b("Mul", product, alpha)}


def _layer_norm(
    b: Builder, x: ir.Value, scale: ir.Value | None, shift: ir.Value | None
) -> ir.Value:
    """Insert a LayerNormalization over the last axis with the fused node's epsilon."""
    inputs = [x, scale, *([shift] if shift is not None else [])]
    epsilon = b.attributes.get_float("epsilon", 1e-12)
    return b("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)


def _of_heads(
    b: Builder, states: Sequence[ir.Value | None], heads: int, width: int, mask: ir.Value | None
) -> ir.Value:
    """Insert the attention of query, key and value, and return the contexts of all heads.

    Each is `(batch, seq, hidden)`. `width` is the size of all heads together. The mask is added to
    the scores.
    """
    parts = [
        b("Transpose", b("Reshape", each, [0, 0, heads, -1]), perm=[0, 2, 1, 3]) for each in states
    ]
    scale = b.attributes.get_float("scale", 0.0) or (width // heads) ** -0.5
    context = b("Transpose", _context(b, parts, mask, scale), perm=[0, 2, 1, 3])
    return b("Reshape", context, [0, 0, -1])


def _context(
    b: Builder, parts: Sequence[ir.Value | None], mask: ir.Value | None, scale: ir.Value | float
) -> ir.Value:
    """Insert the matmuls and the softmax of an attention, and return its context.

    Query, key, value and the context are `(batch, heads, seq, head_dim)`. The mask is added to the
    scores, which are multiplied by `scale`.
    """
    query, key, value = parts
    scores = b("Mul", b("MatMul", query, b("Transpose", key, perm=[0, 1, 3, 2])), scale)
    if mask is not None:
        scores = b("Add", scores, mask)
    return b("MatMul", b("Softmax", scores, axis=-1), value)


def _padding_mask(b: Builder, states: ir.Value | None, mask: ir.Value | None) -> ir.Value | None:
    """Return the additive mask of the scores, `(batch, 1, 1, seq)`.

    The mask is `(batch, seq)` of ones and zeros, or the length of each text, `(batch,)`. The states
    are `(batch, seq, hidden)`: a query without its bias would get a second reader, and would then
    not be found to be the output of a linear layer.

    Raises:
        UserInputError: The mask has another shape.
    """
    if mask is None:
        return None
    rank = None if mask.shape is None else len(mask.shape)
    if rank == 1:
        count = b("Gather", b("Shape", states), 1, axis=0)
        ends = b("Unsqueeze", b("Cast", mask, to=ir.DataType.INT64), [1])
        mask = b("Less", b("Range", 0, count, 1), ends)
    elif rank != 2:
        raise UserInputError(
            f"Node {b.node.name!r} ({b.node.op_type}) takes a mask of shape "
            f"{mask.shape}; expected (batch, seq) or (batch,). Export the graph again without "
            "fusing it."
        )
    padding = b("Sub", 1.0, b("Cast", mask, to=ir.DataType.FLOAT))
    lowest = max(b.attributes.get_float("mask_filter_value", _LOWEST), _LOWEST_FLOAT)
    return b("Unsqueeze", b("Mul", padding, lowest), [1, 2])


_DECOMPOSITIONS: Mapping[tuple[str, str], Build] = {
    (MICROSOFT, "BiasGelu"): _gelu,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "FastGelu"): _gelu,
    (MICROSOFT, "SkipLayerNormalization"): _skip_layer_norm,
    (MICROSOFT, "EmbedLayerNormalization"): _embed_layer_norm,
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "MultiHeadAttention"): _multi_head_attention,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    ("", "Attention"): _onnx_attention,
}


def decompose_fused_operators(model: ir.Model) -> ir.Model:
    """Replace fused operators with plain ones, and return the result; `model` is changed, too.

    Raises:
        UserInputError: A fused operator is unknown, or has inputs that encoders do not have.
    """
    for node in model.graph:
        if node.domain == MICROSOFT and (MICROSOFT, node.op_type) not in _DECOMPOSITIONS:
            raise UserInputError(
                f"Node {node.name!r} is onnxruntime's {node.op_type}, which cannot be "
                "decomposed. Quantize the graph as it was before onnxruntime's optimizer."
            )
    return replace_nodes(model, _DECOMPOSITIONS)
