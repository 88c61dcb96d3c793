"""Decompose fused operators, so that the tensors between their steps can be quantized.

onnxruntime's transformer optimizer and ONNX 23 have operators for whole blocks. Each is replaced
with plain ONNX operators, as its documentation defines it.

Source: onnxruntime, `docs/ContribOperators.md`; ONNX operator Attention, version 23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.errors import UserInputError
from qdqbert.graph.edit import MICROSOFT, add_constant, constant_array, tidy

# Default of onnxruntime's attribute `mask_filter_value`.
_LOWEST = -1e4


class Builder:
    """Inserts the nodes that replace a fused one in front of it."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph = graph
        self.node = node
        self.stem = node.name or node.outputs[0].name or node.op_type
        self._count = 0

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Insert one node and return its output."""
        self._count += 1
        name = f"{self.stem}.{op_type.lower()}_{self._count}"
        made = ir.node(op_type, list(inputs), attributes, name=name)
        made.outputs[0].name = name
        self.graph.insert_before(self.node, made)
        return made.outputs[0]

    def constant(self, array: NDArray[np.generic]) -> ir.Value:
        """Return a new initializer."""
        self._count += 1
        return add_constant(self.graph, f"{self.stem}.constant_{self._count}", array)

    def integers(self, *numbers: int) -> ir.Value:
        """Return an int64 constant, `(n,)`."""
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float) -> ir.Value:
        """Return a float32 constant, `()`."""
        return self.constant(np.array(number, np.float32))

    def input(self, index: int) -> ir.Value | None:
        """Return an input of the fused node, `None` if it is missing."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute of the fused node."""
        return self.node.attributes.get_int(name, default)

    def number(self, name: str, default: float) -> float:
        """Return a float attribute of the fused node."""
        return self.node.attributes.get_float(name, default)

    def refuse(self, *, inputs: Sequence[int] = (), attributes: Sequence[str] = ()) -> None:
        """Refuse inputs and attributes that no encoder has, such as caches.

        Raises:
            UserInputError: The fused node has one of them.
        """
        found = [f"input {index}" for index in inputs if self.input(index) is not None]
        known = self.node.attributes
        found += [f"`{name}`" for name in attributes if name in known and known[name].value]
        if found:
            raise UserInputError(
                f"Node {self.node.name!r} ({self.node.op_type}) has {found[0]}, which graphs of "
                "encoders do not have. Export the graph again without fusing it."
            )

    def layer_norm(self, x: ir.Value, scale: ir.Value | None, shift: ir.Value | None) -> ir.Value:
        """Insert a LayerNormalization over the last axis with the fused node's epsilon."""
        inputs = [x, scale, *([shift] if shift is not None else [])]
        return self.add(
            "LayerNormalization", *inputs, axis=-1, epsilon=self.number("epsilon", 1e-12)
        )

    def heads(self, x: ir.Value, heads: int) -> ir.Value:
        """Split `(batch, seq, hidden)` into `(batch, heads, seq, head_dim)`."""
        split = self.add("Reshape", x, self.integers(0, 0, heads, -1))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def attention(
        self,
        parts: Sequence[ir.Value],
        mask: ir.Value | None,
        scale: ir.Value,
    ) -> ir.Value:
        """Insert the attention of query, key and value. See `context` for the arguments.

        Returns:
            The context, `(batch, seq, hidden)`.
        """
        context = self.context(parts, mask, scale)
        merged = self.add("Transpose", context, perm=[0, 2, 1, 3])
        return self.add("Reshape", merged, self.integers(0, 0, -1))

    def context(
        self,
        parts: Sequence[ir.Value],
        mask: ir.Value | None,
        scale: ir.Value,
    ) -> ir.Value:
        """Insert the matmuls and the softmax of an attention.

        Args:
            parts: Query, key and value, each `(batch, heads, seq, head_dim)`.
            mask: Is added to the scores.
            scale: Multiplies the scores.

        Returns:
            The context, `(batch, heads, seq, head_dim)`.
        """
        query, key, value = parts
        turned = self.add("Transpose", key, perm=[0, 1, 3, 2])
        scores = self.add("Mul", self.add("MatMul", query, turned), scale)
        if mask is not None:
            scores = self.add("Add", scores, mask)
        return self.add("MatMul", self.add("Softmax", scores, axis=-1), value)

    def padding_mask(self, mask: ir.Value | None) -> ir.Value | None:
        """Return the additive mask of the scores, `(batch, 1, 1, seq)`.

        Args:
            mask: `(batch, seq)` of ones and zeros, or the length of each text, `(batch,)`.

        Raises:
            UserInputError: The mask has another shape.
        """
        if mask is None:
            return None
        rank = None if mask.shape is None else len(mask.shape)
        if rank == 1:
            mask = self._mask_of_lengths(mask)
        elif rank != 2:
            raise UserInputError(
                f"Node {self.node.name!r} ({self.node.op_type}) takes a mask of shape "
                f"{mask.shape}; expected (batch, seq) or (batch,). Export the graph again without "
                "fusing it."
            )
        text = self.add("Cast", mask, to=ir.DataType.FLOAT)
        padding = self.add("Sub", self.scalar(1.0), text)
        lowest = self.number("mask_filter_value", _LOWEST)
        added = self.add("Mul", padding, self.scalar(max(lowest, float(np.finfo(np.float32).min))))
        return self.add("Unsqueeze", added, self.integers(1, 2))

    def _mask_of_lengths(self, lengths: ir.Value) -> ir.Value:
        axis, zero = self.constant(np.array(1, np.int64)), self.constant(np.array(0, np.int64))
        count = self.add("Gather", self.add("Shape", self.input(0)), axis, axis=0)
        positions = self.add("Range", zero, count, axis)
        ends = self.add("Unsqueeze", self.add("Cast", lengths, to=ir.DataType.INT64), axis)
        return self.add("Less", positions, ends)


def _gelu(b: Builder) -> dict[int, ir.Value]:
    """Inputs are x, and a bias or none."""
    x = b.input(0)
    if b.input(1) is not None:
        x = b.add("Add", x, b.input(1))
    form = {"approximate": "tanh"} if b.node.op_type == "FastGelu" else {}
    return {0: b.add("Gelu", x, **form)}


def _skip_layer_norm(b: Builder) -> dict[int, ir.Value]:
    """Inputs are x, skip, scale, shift, bias; output 0 is the result, output 3 the sum."""
    x = b.input(0)
    if b.input(4) is not None:
        x = b.add("Add", x, b.input(4))
    total = b.add("Add", x, b.input(1))
    return {0: b.layer_norm(total, b.input(2), b.input(3)), 3: total}


def _embed_layer_norm(b: Builder) -> dict[int, ir.Value]:
    """Inputs are ids, token types, three tables, scale, shift, mask, position ids."""
    ids, segments, positions = b.input(0), b.input(1), b.input(8)
    words = b.add("Gather", b.input(2), ids, axis=0)
    if positions is None:
        length = b.add("Gather", b.add("Shape", ids), b.constant(np.array(1, np.int64)), axis=0)
        start, step = (b.constant(np.array(each, np.int64)) for each in (0, 1))
        ramp = b.add("Range", start, length, step)
        positions = b.add("Unsqueeze", ramp, b.integers(0))
    total = b.add("Add", words, b.add("Gather", b.input(3), positions, axis=0))
    lengths = {}
    mask = b.input(7)
    if mask is not None:
        lengths[1] = b.add("ReduceSum", mask, b.integers(1), keepdims=0)
        lengths[1].shape = ir.Shape(["batch"])
        lengths[1].dtype = mask.dtype or ir.DataType.INT32
    if segments is not None and b.input(4) is not None:
        total = b.add("Add", total, b.add("Gather", b.input(4), segments, axis=0))
    return {0: b.layer_norm(total, b.input(5), b.input(6)), 2: total, **lengths}


def _attention(b: Builder) -> dict[int, ir.Value]:
    """onnxruntime's, with one weight `(hidden, 3 * hidden)` and bias for query, key, value."""
    b.refuse(inputs=(4, 5, 6), attributes=("do_rotary",))
    heads, unidirectional = b.integer("num_heads"), b.integer("unidirectional")
    weight, bias = constant_array(b.input(1)), constant_array(b.input(2))
    if weight is None or unidirectional or "qkv_hidden_sizes" in b.node.attributes:
        raise UserInputError(
            f"Node {b.node.name!r} (Attention) is not supported: expected a constant weight, "
            "query, key and value of one size, and attention in both directions."
        )
    parts: list[ir.Value] = []
    width = weight.shape[1] // 3
    for index in range(3):
        columns = slice(index * width, (index + 1) * width)
        made = b.add("MatMul", b.input(0), b.constant(weight[:, columns]))
        if bias is not None:
            made = b.add("Add", made, b.constant(bias[columns]))
        parts.append(b.heads(made, heads))
    scale = b.scalar(b.number("scale", 0.0) or (width // heads) ** -0.5)
    return {0: b.attention(parts, b.padding_mask(b.input(3)), scale)}


def _multi_head_attention(b: Builder) -> dict[int, ir.Value]:
    """onnxruntime's; inputs are query, key, value, bias, padding mask, additive mask."""
    b.refuse(inputs=(6, 7, 8, 9), attributes=("unidirectional",))
    heads, bias = b.integer("num_heads"), constant_array(b.input(3))
    states = [b.input(index) for index in range(3)]
    query = states[0]
    if any(each is None or (each.shape is not None and len(each.shape) != 3) for each in states):
        raise UserInputError(
            f"Node {b.node.name!r} (MultiHeadAttention) takes packed query, key and value. Export "
            "the graph again without fusing it."
        )
    parts: list[ir.Value] = []
    for index, state in enumerate(states):
        assert state is not None
        if bias is not None:
            width = bias.shape[0] // 3
            part = b.constant(bias[index * width : (index + 1) * width])
            state = b.add("Add", state, part)
        parts.append(b.heads(state, heads))
    hidden = bias.shape[0] // 3 if bias is not None else _last_size(query)
    scale = b.number("scale", 0.0) or (hidden // heads) ** -0.5
    mask = b.padding_mask(b.input(4))
    if b.input(5) is not None:
        mask = b.input(5) if mask is None else b.add("Add", mask, b.input(5))
    return {0: b.attention(parts, mask, b.scalar(scale))}


def _onnx_attention(b: Builder) -> dict[int, ir.Value]:
    """ONNX's, with inputs `(batch, heads, seq, head_dim)` and a bool or additive mask."""
    b.refuse(inputs=(4, 5, 6), attributes=("softcap", "is_causal"))
    query, key, value, mask = (b.input(index) for index in range(4))
    assert query is not None
    assert key is not None
    assert value is not None
    if "q_num_heads" in b.node.attributes:
        raise UserInputError(
            f"Node {b.node.name!r} (Attention) is not supported: expected inputs of four "
            "dimensions. Export the graph again with an opset before 23."
        )
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        lowest = b.scalar(float(np.finfo(np.float32).min))
        mask = b.add("Where", mask, b.scalar(0.0), lowest)
    if "scale" in b.node.attributes:
        scale = b.scalar(b.number("scale", 1.0))
    else:
        size = b.add("Gather", b.add("Shape", query), b.constant(np.array(-1, np.int64)), axis=0)
        root = b.add("Sqrt", b.add("Cast", size, to=ir.DataType.FLOAT))
        scale = b.add("Reciprocal", root)
    return {0: b.context((query, key, value), mask, scale)}


def _fused_matmul(b: Builder) -> dict[int, ir.Value]:
    """Computes `alpha * A' B'`, where the last two axes of each may be transposed."""
    b.refuse(attributes=("transBatchA", "transBatchB"))
    sides = []
    for index, name in enumerate(("transA", "transB")):
        side = b.input(index)
        assert side is not None
        if b.integer(name):
            rank = len(side.shape) if side.shape is not None else 4
            axes = list(range(rank))
            axes[-1], axes[-2] = axes[-2], axes[-1]
            side = b.add("Transpose", side, perm=axes)
        sides.append(side)
    product = b.add("MatMul", *sides)
    alpha = b.number("alpha", 1.0)
    return {0: product if alpha == 1.0 else b.add("Mul", product, b.scalar(alpha))}


def _last_size(value: ir.Value | None) -> int:
    last = value.shape[-1] if value is not None and value.shape is not None else None
    if not isinstance(last, int):
        raise UserInputError(
            "The graph does not contain the width of its attention. Export it again with shapes."
        )
    return last


_DECOMPOSITIONS: Mapping[tuple[str, str], Callable[[Builder], dict[int, ir.Value]]] = {
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
    """Replace fused operators with plain ones, and return `model`.

    Raises:
        UserInputError: A fused operator is unknown, or has inputs that encoders do not have.
    """
    graph = model.graph
    for node in list(graph):
        build = _DECOMPOSITIONS.get((node.domain, node.op_type))
        if build is None:
            if node.domain == MICROSOFT:
                raise UserInputError(
                    f"Node {node.name!r} is onnxruntime's {node.op_type}, which cannot be "
                    "decomposed. Quantize the graph as it was before onnxruntime's optimizer."
                )
            continue
        made = build(Builder(graph, node))
        for index, old in enumerate(node.outputs):
            if index not in made:
                if list(old.uses()) or old.is_graph_output():
                    raise UserInputError(
                        f"Output {index} of node {node.name!r} ({node.op_type}) is used, which "
                        "is not supported. Export the graph again without fusing it."
                    )
                continue
            new, name = made[index], old.name
            new.shape, new.type = old.shape or new.shape, old.type or new.type
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name, new.name = f"{name}_before", name
    return tidy(model)
