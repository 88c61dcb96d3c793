"""Computes encoder layers in onnxruntime's int8 CUDA operators, from codes to codes.

A layer whose 12 outputs and 6 weights are quantized (the recipe `qordered`) becomes 7 nodes:

    q, k, v = QDQ(Linear(x)), split into heads
    QDQ(merge(MatMul(QDQ(Softmax(QDQ(MatMul(q, k')) * d^-0.5 + mask)), v)))
                                      ->  QOrderedAttention(x, ..., Cast(attention_mask))
    QuantizeLinear(Linear(x) + y)     ->  QOrderedMatMul(x, W, b, y)
    QuantizeLinear(Linear(x))         ->  QOrderedMatMul(x, W, b)
    QuantizeLinear(LayerNorm(x))      ->  QOrderedLayerNormalization(x)
    QuantizeLinear(Gelu(x))           ->  QOrderedGelu(x)

`x` and `y` stand for codes that are dequantized. Fires on every layer or fails: one layer in float
among int8 ones is no graph to measure by. Activations are in row order; weights, declared `(in,
out)`, are stored column by column. The kernels want scales and weights constant, one scale a
tensor of activations, heads of a multiple of 16 and other channels of a multiple of 4.

Their attention looks exp() up by difference of codes and multiplies by the mask, where the graph
adds float32's lowest: both give a probability of exactly 0 to [PAD].

Source: onnxruntime, `contrib_ops/cuda/quantization/qordered_ops`; its own fusions, which want other
forms of scaling and mask, `onnxruntime/transformers/fusion_qordered_*.py`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from qdqbert.errors import GraphError, UserInputError
from qdqbert.graph.edit import (
    MICROSOFT,
    add_constant,
    constant_array,
    only_consumer,
    producer_of,
    replace,
    tidy,
)

MASK = "attention_mask"
"""The graph's input that is 0 for [PAD]."""

LAYER_NODES = {
    "QOrderedAttention": 1,
    "QOrderedGelu": 1,
    "QOrderedLayerNormalization": 2,
    "QOrderedMatMul": 3,
}
"""What a layer becomes, by type of node."""

_COLUMN, _ROW = 0, 1
_HEAD_MULTIPLE = 16
_CHANNEL_MULTIPLE = 4
_LOW = -1e4
_SPLIT = (0, 2, 1, 3)
_SPLIT_TRANSPOSED = (0, 2, 3, 1)
_RESULT = "output.layernorm_output_quantizer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
    """A QuantizeLinear and the DequantizeLinear behind it.

    Attributes:
        quantize: Whose codes a fused node takes the place of.
        reals: Knows codes and scale as they are by now.
    """

    quantize: ir.Node
    reals: ir.Node

    @property
    def codes(self) -> ir.Value | None:
        """int8."""
        return self.reals.inputs[0]

    @property
    def scale(self) -> ir.Value | None:
        """`(1,)`, float32: the kernels take it for a scalar."""
        return self.reals.inputs[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Linear:
    """A product of dequantized codes with a constant int8 weight, and its bias.

    Attributes:
        x: The DequantizeLinear that makes its input.
        weight: Codes, declared `(in, out)`, stored column by column.
        scale: Of the weight, `(1,)` or `(out,)`.
        bias: `(out,)`, float32.
        total: The product with its bias.
        width: `out`.
    """

    x: ir.Node
    weight: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    total: ir.Value
    width: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Projection:
    """Query, key or value: a linear whose output is split into heads and quantized."""

    linear: _Linear
    scale: ir.Value | None
    heads: int


def fuse_qordered(model: ir.Model) -> ir.Model:
    """The rewrite; changes and returns `model`.

    Raises:
        UserInputError: A layer has a site in float, channels that the kernels cannot take, or
            another form; says which layer and why.
        GraphError: There is no layer, or one was not fused.
    """
    model.opset_imports[MICROSOFT] = 1
    _share_pairs(model.graph)
    layers = [node for node in model.graph if node.op_type == "Softmax"]
    if not layers:
        raise GraphError("The graph holds no attention, so there is no layer to fuse.")
    names = [_layer_name(softmax) for softmax in layers]
    readers = [f"{name}.attention.self.query._input_quantizer" for name in names[1:]]
    readers.append(f"{names[-1]}.{_RESULT}")
    for softmax, name, reader in zip(layers, names, readers, strict=True):
        _Layer(model.graph, name, reader).fuse(softmax)
    fused = tidy(model)
    counts = Counter(node.op_type for node in fused.graph if node.domain == MICROSOFT)
    wanted = {name: count * len(layers) for name, count in LAYER_NODES.items()}
    if counts != wanted:
        raise GraphError(f"{len(layers)} layers became {dict(counts)}; expected {wanted}.")
    return fused


class _Layer:
    """One encoder layer, followed from its softmax; fused nodes take the place of its codes.

    Attributes:
        graph: Holds it.
        name: Its path.
        reader: The site of what it returns, which the next layer has, if there is one.
    """

    def __init__(self, graph: ir.Graph, name: str, reader: str) -> None:
        self.graph = graph
        self.name = name
        self.reader = reader

    def fuse(self, softmax: ir.Node) -> None:
        """Replaces the layer around a softmax."""
        states, context = self._fuse_attention(softmax)
        middle = self._fuse_residual(
            "attention.output", context, states, "intermediate.dense._input_quantizer"
        )
        inner = self._linear_after(middle, "intermediate.dense")
        before = self._written(inner.total, "intermediate.activation_input_quantizer")
        self._put_matmul("intermediate.dense", before, inner)
        after = self._fuse_gelu(before)
        self._fuse_residual("output", after, middle.reals, _RESULT)

    def _fuse_attention(self, softmax: ir.Node) -> tuple[ir.Node, _Pair]:
        """Returns what dequantizes the layer's input, and the pair of the context."""
        path = "attention.self"
        masked = self._before(softmax.inputs[0], "Add", "the mask")
        scaled = self._before(masked.inputs[0], "Mul", "the scaling of the scores")
        scores = self._read(scaled.inputs[0], f"{path}.softmax_input_quantizer")
        product = self._before(self._source(scores), "MatMul", "the product of query and key")
        query = self._projection(product.inputs[0], "query", "q", _SPLIT)
        key = self._projection(product.inputs[1], "key", "k", _SPLIT_TRANSPOSED)
        probabilities = self._written(softmax.outputs[0], f"{path}.matmul_a_input_quantizer")
        mixed = self._after(probabilities, "MatMul", f"{path}.matmul_a_input_quantizer")
        value = self._projection(mixed.inputs[1], "value", "v", _SPLIT)
        merged = self._merged_heads(mixed)
        context = self._written(merged, "attention.output.dense._input_quantizer")
        parts = (query, key, value)
        linears = [part.linear for part in parts]
        states = query.linear.x
        if any(each.x.inputs[0] is not states.inputs[0] for each in linears):
            self._refuse("reads its input by several ranges in query, key and value")
        if len({(part.linear.width, part.heads) for part in parts}) != 1:
            self._refuse("has query, key and value of different widths")
        self._check_attention(softmax, scaled, masked, query)
        self._put(
            "QOrderedAttention",
            path,
            context,
            [
                states.inputs[0],
                states.inputs[1],
                *(part.scale for part in parts),
                *(each.weight for each in linears),
                *(each.scale for each in linears),
                *(each.bias for each in linears),
                scores.inputs[1],
                probabilities.scale,
                context.scale,
                _integer_mask(self.graph),
            ],
            num_heads=query.heads,
            qkv_hidden_sizes=[each.width for each in linears],
            order_input=_ROW,
            order_weight=_COLUMN,
            order_output=_ROW,
        )
        return states, context

    def _check_attention(
        self, softmax: ir.Node, scaled: ir.Node, masked: ir.Node, query: _Projection
    ) -> None:
        """What the kernel takes for granted, of the softmax and of the sizes."""
        width, heads = query.linear.width, query.heads
        if (width // heads) % _HEAD_MULTIPLE:
            self._refuse(
                f"has a head dimension of {width // heads} ({width} channels in {heads} heads); "
                f"the kernels need a multiple of {_HEAD_MULTIPLE}"
            )
        factor = constant_array(scaled.inputs[1])
        if factor is None or not np.isclose(float(factor.reshape(-1)[0]), (width // heads) ** -0.5):
            self._refuse(f"does not scale its scores by {width // heads}^-0.5, as the kernel does")
        axis = softmax.attributes.get("axis")
        if axis is not None and axis.as_int() not in (-1, 3):
            self._refuse(f"has a softmax over axis {axis.as_int()}; expected the last")
        if not _is_padding_mask(masked.inputs[1]):
            self._refuse(f"has a mask that is not made of the input `{MASK}` of [PAD] alone")

    def _fuse_residual(self, path: str, x: _Pair, residual: ir.Node, result: str) -> _Pair:
        """Dense, residual add and LayerNormalization.

        Args:
            path: Of the three, in the layer.
            x: The dense layer's input.
            residual: Dequantizes what is added.
            result: Site of the LayerNormalization's output.
        """
        linear = self._linear_after(x, f"{path}.dense")
        add = only_consumer(linear.total)
        if add is None or add.op_type != "Add":
            self._refuse(
                f"does not add what `{path}.dense` makes to a residual as it is; the kernel rounds "
                "only the sum. Pass `--recipe qordered`"
            )
        other = next(value for value in add.inputs if value is not linear.total)
        added = self._read(other, f"{path}.add_residual_input_quantizer")
        if added.inputs[0] is not residual.inputs[0]:
            self._refuse(f"adds a residual in `{path}` by another range than its layers read it")
        total = self._written(add.outputs[0], f"{path}.layernorm_input_quantizer")
        self._put_matmul(f"{path}.dense", total, linear, added)
        norm = self._after(total, "LayerNormalization", f"{path}.layernorm_input_quantizer")
        axis, epsilon = (norm.attributes.get(name) for name in ("axis", "epsilon"))
        if axis is not None and axis.as_int() not in (-1, 2):
            self._refuse(f"normalises axis {axis.as_int()} in `{path}`; expected the last")
        normed = self._written(norm.outputs[0], result)
        self._put(
            "QOrderedLayerNormalization",
            f"{path}.LayerNorm",
            normed,
            [
                total.codes,
                total.scale,
                norm.inputs[1],
                norm.inputs[2] if len(norm.inputs) > 2 else None,
                normed.scale,
            ],
            axis=-1,
            epsilon=1e-5 if epsilon is None else epsilon.as_float(),
            order_X=_ROW,
            order_Y=_ROW,
        )
        return normed

    def _fuse_gelu(self, before: _Pair) -> _Pair:
        nodes = list(before.reals.outputs[0].consumers())
        gelu = nodes[0] if len(nodes) == 1 else None
        approximate = gelu.attributes.get("approximate") if gelu else None
        if gelu is None or gelu.op_type != "Gelu":
            kinds = " and ".join(sorted({node.op_type for node in nodes})) or "nothing"
            self._refuse(f"reads `intermediate.dense` with {kinds}; the kernel is GELU")
        if approximate is not None and approximate.as_string() != "none":
            self._refuse(f"computes GELU by {approximate.as_string()}; the kernel by erf")
        after = self._written(gelu.outputs[0], "output.dense._input_quantizer")
        self._put(
            "QOrderedGelu",
            "intermediate.gelu",
            after,
            [before.codes, before.scale, after.scale],
            order_X=_ROW,
            order_Y=_ROW,
        )
        return after

    def _put_matmul(
        self, path: str, result: _Pair, linear: _Linear, added: ir.Node | None = None
    ) -> None:
        self._put(
            "QOrderedMatMul",
            path,
            result,
            [
                linear.x.inputs[0],
                linear.x.inputs[1],
                linear.weight,
                linear.scale,
                result.scale,
                linear.bias,
                *(added.inputs[:2] if added else ()),
            ],
            order_A=_ROW,
            order_B=_COLUMN,
            order_Y=_ROW,
        )

    def _put(
        self,
        op_type: str,
        path: str,
        result: _Pair,
        inputs: list[ir.Value | None],
        **attributes: int | float | list[int],
    ) -> None:
        """A new node that makes the codes of `result`."""
        codes = result.quantize.outputs[0]
        codes.type = ir.TensorType(ir.DataType.INT8)
        codes.shape = result.quantize.inputs[0].shape if result.quantize.inputs[0] else None
        name = f"{self.name}.{path}.{op_type}"
        new = ir.node(op_type, inputs, attributes, domain=MICROSOFT, name=name)
        replace(self.graph, result.quantize, new, old=codes)

    def _projection(
        self, value: ir.Value | None, part: str, letter: str, permutation: tuple[int, ...]
    ) -> _Projection:
        path = f"attention.self.{part}"
        reals = self._read(value, f"attention.self.matmul_{letter}_input_quantizer")
        transpose = self._before(self._source(reals), "Transpose", f"the heads of `{path}`")
        reshape = self._before(transpose.inputs[0], "Reshape", f"the heads of `{path}`")
        shape = reshape.outputs[0].shape
        heads = shape[2] if shape is not None and len(shape) == 4 else None
        if tuple(transpose.attributes["perm"].as_ints()) != permutation or not isinstance(
            heads, int
        ):
            self._refuse(f"splits `{path}` into heads in another way")
        add = self._before(reshape.inputs[0], "Add", f"the bias of `{path}`")
        sources = (producer_of(each, "MatMul") for each in add.inputs)
        matmul = next((node for node in sources if node is not None), None)
        if matmul is None:
            self._refuse(f"has no product at `{path}`")
        linear = self._linear(matmul, path)
        return _Projection(linear=linear, scale=reals.inputs[1], heads=heads)

    def _merged_heads(self, mixed: ir.Node) -> ir.Value:
        """`(batch, seq, hidden)` of the context `(batch, heads, seq, head_dim)`."""
        transpose = only_consumer(mixed.outputs[0])
        reshape = only_consumer(transpose.outputs[0]) if transpose is not None else None
        if (
            transpose is None
            or reshape is None
            or (transpose.op_type, reshape.op_type) != ("Transpose", "Reshape")
            or tuple(transpose.attributes["perm"].as_ints()) != _SPLIT
        ):
            self._refuse("does not put the heads of its context side by side")
        return reshape.outputs[0]

    def _linear_after(self, x: _Pair, path: str) -> _Linear:
        return self._linear(self._after(x, "MatMul", f"{path}._input_quantizer"), path)

    def _linear(self, matmul: ir.Node, path: str) -> _Linear:
        x = self._read(matmul.inputs[0], f"{path}._input_quantizer")
        made = producer_of(matmul.inputs[1], "DequantizeLinear")
        codes = constant_array(made.inputs[0]) if made is not None else None
        if made is None or codes is None:
            self._missing(f"{path}._weight_quantizer")
        rows, columns = codes.shape
        for what, size in (("inputs", rows), ("outputs", columns)):
            if size % _CHANNEL_MULTIPLE:
                self._refuse(
                    f"has {size} {what} in `{path}`; the kernels need a multiple of "
                    f"{_CHANNEL_MULTIPLE}"
                )
        add = only_consumer(matmul.outputs[0])
        biases = [] if add is None else [v for v in add.inputs if constant_array(v) is not None]
        if add is None or add.op_type != "Add" or len(biases) != 1:
            self._refuse(f"has no constant bias at `{path}`")
        return _Linear(
            x=x,
            weight=add_constant(
                self.graph,
                f"{self.name}.{path}.weight_columns",
                np.ascontiguousarray(codes.T).reshape(rows, columns),
            ),
            scale=made.inputs[1],
            bias=biases[0],
            total=add.outputs[0],
            width=columns,
        )

    def _written(self, value: ir.Value, site: str) -> _Pair:
        """The one pair that quantizes a value."""
        nodes = [node for node in value.consumers() if node.op_type == "QuantizeLinear"]
        if not nodes:
            clips = [node for node in value.consumers() if node.op_type == "Clip"]
            if clips:
                self._few_bits(site)
            self._missing(site)
        if len(nodes) > 1:
            self._refuse(f"quantizes at `{site}` by {len(nodes)} ranges; its readers need one")
        reals = list(nodes[0].outputs[0].consumers())
        if len(reals) != 1 or reals[0].op_type != "DequantizeLinear":
            self._refuse(f"reads the codes of `{site}` in another way than DequantizeLinear")
        self._check_scale(reals[0], site)
        return _Pair(quantize=nodes[0], reals=reals[0])

    def _read(self, value: ir.Value | None, site: str) -> ir.Node:
        """What dequantizes a value."""
        reals = producer_of(value, "DequantizeLinear")
        if reals is None:
            self._missing(site)
        self._check_scale(reals, site)
        return reals

    def _check_scale(self, reals: ir.Node, site: str) -> None:
        scale = constant_array(reals.inputs[1])
        zero_point = constant_array(reals.inputs[2])
        if scale is None or scale.size != 1 or zero_point is None:
            self._refuse(f"has no constant scale at `{site}`")
        if zero_point.dtype != np.int8 or zero_point.any():
            self._refuse(f"has codes at `{site}` that are not int8 around zero")

    def _source(self, reals: ir.Node) -> ir.Value | None:
        """What was quantized."""
        quantize = producer_of(reals.inputs[0], "QuantizeLinear")
        source = quantize.inputs[0] if quantize is not None else None
        if producer_of(source, "Clip") is not None:
            self._few_bits((reals.name or "").removesuffix(".dequantize")[len(self.name) + 1 :])
        return source

    def _before(self, value: ir.Value | None, op_type: str, what: str) -> ir.Node:
        node = producer_of(value, op_type)
        if node is None:
            self._refuse(f"has no {op_type} where {what} is expected")
        return node

    def _after(self, pair: _Pair, op_type: str, site: str) -> ir.Node:
        """The node of that type that reads a pair."""
        nodes = [node for node in pair.reals.outputs[0].consumers() if node.op_type == op_type]
        if len(nodes) != 1:
            self._missing(site)
        return nodes[0]

    def _full(self, site: str) -> str:
        return self.reader if site == _RESULT else f"{self.name}.{site}"

    def _few_bits(self, site: str) -> NoReturn:
        raise UserInputError(
            f"Site `{self._full(site)}` has fewer than 8 bits; the kernels write 8."
        )

    def _missing(self, site: str) -> NoReturn:
        raise UserInputError(
            f"Site `{self._full(site)}` is left in float; int8 CUDA operators need every output of "
            "every layer in int8. Pass `--recipe qordered`, and no switch that disables quantizers."
        )

    def _refuse(self, reason: str) -> NoReturn:
        raise UserInputError(f"Layer `{self.name}` {reason}.")


def _share_pairs(graph: ir.Graph) -> None:
    """Leaves one pair of those that read a value by one scale: the kernels' readers share codes."""
    kept: dict[tuple[object, ...], ir.Value] = {}
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        for node in [node for node in graph if node.op_type == op_type]:
            constants = [constant_array(value) for value in node.inputs]
            if constants[0] is not None or node.outputs[0].is_graph_output():
                continue
            arrays = [array.tobytes() for array in constants if array is not None]
            result = kept.setdefault((op_type, id(node.inputs[0]), *arrays), node.outputs[0])
            if result is not node.outputs[0]:
                node.outputs[0].replace_all_uses_with(result)
                graph.remove(node, safe=True)


def _layer_name(softmax: ir.Node) -> str:
    """The path of the layer around a softmax, by the nearest constant that is named after it."""
    queue, seen = list(softmax.inputs), set()
    for value in queue:  # grows
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        layer, found, rest = (value.name or "").partition(".attention.")
        if found and rest.endswith((".scale", ".weight_codes", ".weight_transposed")):
            return layer
        node = value.producer()
        queue += node.inputs if node is not None else ()
    return softmax.name or "?"


def _is_padding_mask(value: ir.Value | None) -> bool:
    """Whether a value is very low where `attention_mask` is 0, and else 0, for all queries."""
    chosen = producer_of(value, "Where")
    low, zero = (constant_array(each) for each in chosen.inputs[1:]) if chosen else (None, None)
    if chosen is None or low is None or zero is None or low.max() > _LOW or zero.any():
        return False
    equal = producer_of(chosen.inputs[0], "Equal")
    padding = constant_array(equal.inputs[1]) if equal is not None else None
    spread = producer_of(equal.inputs[0], "Unsqueeze") if equal is not None else None
    if padding is None or padding.any() or spread is None:
        return False
    source, shape = spread.inputs[0], spread.outputs[0].shape
    return (
        source is not None
        and source.is_graph_input()
        and source.name == MASK
        and shape is not None
        and len(shape) == 4
        and shape[1:3] == (1, 1)
    )


def _integer_mask(graph: ir.Graph) -> ir.Value:
    """`attention_mask` as int32, `(batch, seq)`, made once at the start of the graph."""
    source = next(value for value in graph.inputs if value.name == MASK)
    for node in source.consumers():
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.INT32:
            return node.outputs[0]
    cast = ir.node("Cast", [source], {"to": ir.DataType.INT32}, name=f"{MASK}.int32")
    cast.outputs[0].name = f"{MASK}.codes"
    graph.insert_before(graph[0], cast)
    return cast.outputs[0]
