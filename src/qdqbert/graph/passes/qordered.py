"""Compute encoder layers in ONNX Runtime's int8 CUDA operators, from codes to codes.

A layer whose 12 outputs and 6 weights are quantized (the recipe `qordered`) becomes 7 nodes:

    q, k, v = QDQ(Linear(x)), split into heads
    QDQ(merge(MatMul(QDQ(Softmax(QDQ(MatMul(q, k')) * d^-0.5 + mask)), v)))
                                      ->  QOrderedAttention(x, ..., Cast(attention_mask))
    QuantizeLinear(Linear(x) + y)     ->  QOrderedMatMul(x, W, b, y)
    QuantizeLinear(Linear(x))         ->  QOrderedMatMul(x, W, b)
    QuantizeLinear(LayerNorm(x))      ->  QOrderedLayerNormalization(x)
    QuantizeLinear(Gelu(x))           ->  QOrderedGelu(x)

`x` and `y` are dequantized codes. The rewrite applies to every layer or fails, because a float
layer among int8 layers would not show the speed of either. Activations are in row order.
Weights are declared `(in, out)` and stored column by column. The kernels need:

- constant scales and weights
- one scale for each tensor of activations
- a head dimension that is a multiple of 16, and other channels that are a multiple of 4

Their attention looks exp() up by the difference of codes and multiplies by the mask, where the
graph adds float32's lowest number. Both give [PAD] a probability of exactly 0.

Source: onnxruntime, `contrib_ops/cuda/quantization/qordered_ops`. ONNX Runtime's own fusions are in
`onnxruntime/transformers/fusion_qordered_*.py`; they expect other forms of scaling and mask.
"""

from __future__ import annotations

import onnx_ir as ir

from qdqbert.errors import GraphError
from qdqbert.graph.edit import MICROSOFT, constant_array, only_consumer, replace, tidy
from qdqbert.graph.passes.attention import (
    HEADS_FIRST,
    HEADS_FIRST_TRANSPOSED,
    MASK,
    integer_mask,
    merged_heads,
    padding_mask,
    scales_by_head_dim,
)
from qdqbert.graph.passes.qordered_layer import RESULT, LayerReader, Linear, Pair, Projection

_COLUMN, _ROW = 0, 1
_HEAD_MULTIPLE = 16


def fuse_qordered(model: ir.Model) -> ir.Model:
    """Apply the rewrite; change and return `model`.

    Raises:
        UserInputError: A layer has a site in float, channels that the kernels cannot take, or an
            unknown form. The message names the layer and the reason.
        GraphError: The graph has no layer.
    """
    model.opset_imports[MICROSOFT] = 1
    _share_pairs(model.graph)
    layers = [node for node in model.graph if node.op_type == "Softmax"]
    if not layers:
        raise GraphError("The graph has no attention, so there is no layer to fuse.")
    names = [_layer_name(softmax) for softmax in layers]
    readers = [f"{name}.attention.self.query._input_quantizer" for name in names[1:]]
    readers.append(f"{names[-1]}.{RESULT}")
    for softmax, name, reader in zip(layers, names, readers, strict=True):
        _fuse_layer(LayerReader(model.graph, name, reader), softmax)
    return tidy(model)


def _fuse_layer(layer: LayerReader, softmax: ir.Node) -> None:
    """Replace the layer around a softmax; fused nodes make the codes of its pairs."""
    states, context = _fuse_attention(layer, softmax)
    middle = _fuse_residual(
        layer, "attention.output", context, states, "intermediate.dense._input_quantizer"
    )
    inner = layer.linear_after(middle, "intermediate.dense")
    before = layer.written(inner.total, "intermediate.activation_input_quantizer")
    _put_matmul(layer, "intermediate.dense", before, inner)
    after = _fuse_gelu(layer, before)
    _fuse_residual(layer, "output", after, middle.reals, RESULT)


def _fuse_attention(layer: LayerReader, softmax: ir.Node) -> tuple[ir.Node, Pair]:
    """Return the node that dequantizes the layer's input, and the pair of the context."""
    path = "attention.self"
    masked = layer.before(softmax.inputs[0], "Add", "the mask")
    scaled = layer.before(masked.inputs[0], "Mul", "the scaling of the scores")
    scores = layer.read(scaled.inputs[0], f"{path}.softmax_input_quantizer")
    matmul = layer.before(layer.source(scores), "MatMul", "the matmul of query and key")
    query = layer.projection(matmul.inputs[0], "query", "q", HEADS_FIRST)
    key = layer.projection(matmul.inputs[1], "key", "k", HEADS_FIRST_TRANSPOSED)
    probabilities = layer.written(softmax.outputs[0], f"{path}.matmul_a_input_quantizer")
    mixed = layer.after(probabilities, "MatMul", f"{path}.matmul_a_input_quantizer")
    value = layer.projection(mixed.inputs[1], "value", "v", HEADS_FIRST)
    merged = merged_heads(mixed)
    assert merged is not None
    context = layer.written(merged.outputs[0], "attention.output.dense._input_quantizer")
    parts = (query, key, value)
    linear_layers = [part.linear for part in parts]
    states = query.linear.x
    _check_projections(layer, parts)
    mask = _check_attention(layer, scaled, masked, query)
    _put(
        layer,
        "QOrderedAttention",
        path,
        context,
        [
            states.inputs[0],
            states.inputs[1],
            *(part.scale for part in parts),
            *(each.weight for each in linear_layers),
            *(each.scale for each in linear_layers),
            *(each.bias for each in linear_layers),
            scores.inputs[1],
            probabilities.scale,
            context.scale,
            integer_mask(layer.graph, mask),
        ],
        num_heads=query.heads,
        qkv_hidden_sizes=[each.width for each in linear_layers],
        order_input=_ROW,
        order_weight=_COLUMN,
        order_output=_ROW,
    )
    return states, context


def _check_projections(layer: LayerReader, parts: tuple[Projection, ...]) -> None:
    codes = {part.linear.x.inputs[0] for part in parts}
    if len(codes) != 1:
        layer.refuse("reads its input with several ranges in query, key and value")
    if len({(part.linear.width, part.heads) for part in parts}) != 1:
        layer.refuse("has query, key and value of different widths")


def _check_attention(
    layer: LayerReader, scaled: ir.Node, masked: ir.Node, query: Projection
) -> ir.Value:
    """Check the kernel's assumptions on the sizes, the scaling and the mask; return the mask."""
    width, heads = query.linear.width, query.heads
    head_dim = width // heads
    if head_dim % _HEAD_MULTIPLE:
        layer.refuse(
            f"has a head dimension of {head_dim} ({width} channels in {heads} heads); the kernels "
            f"need a multiple of {_HEAD_MULTIPLE}"
        )
    if not scales_by_head_dim(scaled, head_dim):
        layer.refuse(f"does not scale its scores by {head_dim}^-0.5, as the kernel does")
    mask = padding_mask(masked.inputs[1])
    if mask is None:
        layer.refuse(f"has a mask that is not computed from the input `{MASK}` alone")
    return mask


def _fuse_residual(layer: LayerReader, path: str, x: Pair, residual: ir.Node, result: str) -> Pair:
    """Fuse a linear layer, the residual add and the LayerNormalization.

    Args:
        layer: The layer.
        path: Path of the three modules in the layer.
        x: Input of the linear layer.
        residual: Dequantizes the residual.
        result: Site of the output of the LayerNormalization.

    Returns:
        The pair of the output.
    """
    linear = layer.linear_after(x, f"{path}.dense")
    add = only_consumer(linear.total)
    if add is None or add.op_type != "Add":
        layer.refuse(
            f"rounds the output of `{path}.dense` before it is added to the residual; the kernel "
            "rounds only the sum. Choose `recipe='qordered'`"
        )
    other = next(value for value in add.inputs if value is not linear.total)
    added = layer.read(other, f"{path}.add_residual_input_quantizer")
    if added.inputs[0] is not residual.inputs[0]:
        layer.refuse(f"adds a residual in `{path}` with another range than its layers read it")
    total = layer.written(add.outputs[0], f"{path}.layernorm_input_quantizer")
    _put_matmul(layer, f"{path}.dense", total, linear, added)
    norm = layer.after(total, "LayerNormalization", f"{path}.layernorm_input_quantizer")
    normed = layer.written(norm.outputs[0], result)
    _put(
        layer,
        "QOrderedLayerNormalization",
        f"{path}.LayerNorm",
        normed,
        [
            total.codes,
            total.scale,
            norm.inputs[1],
            norm.inputs[2],
            normed.scale,
        ],
        axis=-1,
        epsilon=norm.attributes.get_float("epsilon", 1e-5),
        order_X=_ROW,
        order_Y=_ROW,
    )
    return normed


def _fuse_gelu(layer: LayerReader, before: Pair) -> Pair:
    nodes = list(before.reals.outputs[0].consumers())
    gelu = nodes[0] if len(nodes) == 1 else None
    approximate = gelu.attributes.get("approximate") if gelu else None
    if gelu is None or gelu.op_type != "Gelu":
        kinds = " and ".join(sorted({node.op_type for node in nodes})) or "nothing"
        layer.refuse(f"reads `intermediate.dense` with {kinds}; the kernel is GELU")
    if approximate is not None and approximate.as_string() != "none":
        layer.refuse(f"computes GELU by {approximate.as_string()}; the kernel computes it by erf")
    after = layer.written(gelu.outputs[0], "output.dense._input_quantizer")
    _put(
        layer,
        "QOrderedGelu",
        "intermediate.gelu",
        after,
        [before.codes, before.scale, after.scale],
        order_X=_ROW,
        order_Y=_ROW,
    )
    return after


def _put_matmul(
    layer: LayerReader, path: str, result: Pair, linear: Linear, added: ir.Node | None = None
) -> None:
    _put(
        layer,
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
    layer: LayerReader,
    op_type: str,
    path: str,
    result: Pair,
    inputs: list[ir.Value | None],
    **attributes: int | float | list[int],
) -> None:
    """Add a node that makes the codes of `result`."""
    codes = result.quantize.outputs[0]
    codes.type = ir.TensorType(ir.DataType.INT8)
    codes.shape = result.quantize.inputs[0].shape if result.quantize.inputs[0] else None
    name = f"{layer.name}.{path}.{op_type}"
    new = ir.node(op_type, inputs, attributes, domain=MICROSOFT, name=name)
    replace(layer.graph, result.quantize, new, old=codes)


def _share_pairs(graph: ir.Graph) -> None:
    """Keep one of the pairs that quantize a value with one scale; readers of codes share them."""
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
    """Return the path of the layer around a softmax, from the nearest constant with such a name."""
    queue, seen = list(softmax.inputs), set()
    # The queue grows while it is read.
    for value in queue:
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        layer, found, rest = (value.name or "").partition(".attention.")
        if found and rest.endswith((".scale", ".weight_codes", ".weight")):
            return layer
        node = value.producer()
        queue += node.inputs if node is not None else ()
    return softmax.name or "?"
