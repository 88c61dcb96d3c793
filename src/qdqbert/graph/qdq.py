"""Replace the sites of a graph with Q/DQ pairs and int8 constants.

An activation:

    Site(x)             ->  DequantizeLinear(QuantizeLinear(x))
    Site(x)             ->  DequantizeLinear(QuantizeLinear(x * p))            pre_quant_scale p
    Site(x)             ->  DequantizeLinear(QuantizeLinear(x * p)) * (1 / p)  input of an add
    Site(x)             ->  DequantizeLinear(DynamicQuantizeLinear(x))         dynamic quantization
    Site(x)             ->  x                                                  left in float

The weight of a linear layer, and an embedding table:

    Transpose(Site(W))  ->  DequantizeLinear(int8 codes of W')
    Gather(Site(T), i)  ->  Mul(Cast(Gather(int8 codes of T, i)), s)
    MatMul(x, T')       ->  MatMul(x, T'' from the same codes and their rest; see `shared_table`)

Each weight is stored once, as int8. An embedding table has a scale per hidden channel, so the scale
is multiplied after the lookup of rows. The decoder of a masked LM often has the same weights. It is
computed in float, like all heads. The same code serves exported graphs and existing ONNX models
with `Site` nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from qdqbert.encoders.shared_table import rest_of
from qdqbert.errors import CalibrationError, GraphError
from qdqbert.graph.edit import (
    add_constant,
    add_to_bias,
    constant_array,
    producer_of,
    replace,
    tidy,
)
from qdqbert.graph.shared_table import add_shared_table
from qdqbert.machine import release_memory_after
from qdqbert.numerics.affine import (
    QuantizationParameters,
    parameters_of,
    quantize_weight,
    rounding_shift,
)
from qdqbert.numerics.weight_rounding import Roundings, rounding_of
from qdqbert.spec import QdqStyle, Range, TensorSpec, input_site_of, is_residual_input

SITE_DOMAIN = "qdqbert"
"""Domain of the `Site` nodes."""


def sites_of(graph: ir.Graph) -> list[ir.Node]:
    """Return the site nodes of a graph, in the order of the graph."""
    return [node for node in graph if node.domain == SITE_DOMAIN and node.op_type == "Site"]


def float_graph(sited: ir.Model) -> ir.Model:
    """Return a copy of the graph with every site left in float."""
    names = [site.attributes["site"].as_string() for site in sites_of(sited.graph)]
    return insert_qdq(sited, dict.fromkeys(names), {})


def insert_qdq(
    sited: ir.Model,
    specs: Mapping[str, TensorSpec | None],
    ranges: Mapping[str, Range],
    *,
    scales: Mapping[str, NDArray[np.float32]] | None = None,
    weight_amax: Mapping[str, torch.Tensor] | None = None,
    means: Mapping[str, torch.Tensor] | None = None,
    roundings: Roundings | None = None,
    style: QdqStyle | None = None,
) -> ir.Model:
    """Return a copy of a graph in which every site is quantized according to its spec.

    Sites that read the same value with equal parameters share one Q/DQ pair, unless `style` asks
    for dedicated pairs.

    Args:
        sited: A float graph with site nodes. It is not changed.
        specs: Spec of every site by name. `None` leaves the site in float.
        ranges: Ranges by site name, for every activation with a spec that is not dynamic.
        scales: `pre_quant_scale` by site name, `(channels,)`. Weights are divided by it, and the
            inputs of residual adds are divided by it after their Q/DQ pair.
        weight_amax: `amax` of weights by site name, `()` or `(channels,)`. It replaces the largest
            magnitude of the weight.
        means: Mean of the inputs of linear layers whose biases are corrected, by site name,
            `(channels,)`.
        roundings: How weights are rounded, where it is not to the nearest code.
        style: Form of the Q/DQ pairs that the target needs.

    Raises:
        CalibrationError: If an activation has a spec and no range.
        GraphError: If a weight's site is read by a node that its codes cannot be folded into.
    """
    style = style or QdqStyle()
    model = sited.clone()
    if style.dedicated_pairs:
        _add_site_per_reader(model.graph)
    scales = scales or {}
    pairs: dict[tuple[object, ...], ir.Value] = {}
    scaled: dict[tuple[object, ...], ir.Value] = {}
    for node in sites_of(model.graph):
        name = node.attributes["site"].as_string()
        spec = specs[name]
        weight = constant_array(node.inputs[0])
        input_site = name if weight is None else input_site_of(name)
        # If the input is multiplied, its weight is divided, whether the weight is quantized or not.
        scale = scales.get(input_site) if specs.get(input_site) is not None else None
        if weight is not None:
            weight = weight if scale is None else weight.astype(np.float32) * (1 / scale)
            amax = (weight_amax or {}).get(name)
            mean = (means or {}).get(input_site)
            if mean is not None and scale is not None:
                mean = mean * torch.from_numpy(scale)
            rounds_up = rounding_of(roundings, name, weight.shape[-1], specs)
            _lower_weight(model.graph, node, name, weight, spec, amax, rounds_up, mean)
            release_memory_after(weight.nbytes)
        elif spec is None:
            _remove_site(model.graph, node)
        elif name not in ranges and not spec.dynamic:
            raise CalibrationError(f"Site `{name}` has no calibrated range. Calibrate it first.")
        else:
            label = _label(node)
            if scale is not None:
                _apply_pre_quant_scale(model.graph, node, label, scale, scaled)
                if is_residual_input(name):
                    _undo_pre_quant_scale(model.graph, node, label, scale)
            if spec.dynamic:
                _lower_dynamic(model.graph, node, label, pairs)
            else:
                parameters = parameters_of(ranges[name], spec)
                _lower_activation(model.graph, node, label, parameters, spec, style, pairs)
    return tidy(model)


def _add_site_per_reader(graph: ir.Graph) -> None:
    """Copy the site of each activation: one for each reader.

    The copies have the same site, and names of their own.
    """
    for node in sites_of(graph):
        result = node.outputs[0]
        if constant_array(node.inputs[0]) is not None:
            continue
        uses = list(result.uses())
        for index, use in enumerate(uses if result.is_graph_output() else uses[1:], start=1):
            copy = ir.node(
                "Site",
                list(node.inputs),
                node.attributes,
                domain=SITE_DOMAIN,
                name=f"{_label(node)}.{index}",
            )
            made = copy.outputs[0]
            made.name, made.shape, made.type = f"{result.name}.{index}", result.shape, result.type
            graph.insert_after(node, copy)
            use.node.replace_input_with(use.idx, made)


def _label(node: ir.Node) -> str:
    """Return the prefix of the names of the nodes that replace a site's node.

    It is the site's name, with a number for the node of a further reader.
    """
    site = node.attributes["site"].as_string()
    name = node.name or ""
    return name if name.startswith(site) else site


def _remove_site(graph: ir.Graph, node: ir.Node) -> None:
    """Remove a site: its readers read its input."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    if result.is_graph_output():
        # The name of an output has to stay.
        replace(graph, node, ir.node("Identity", [source]), old=result)
    else:
        result.replace_all_uses_with(source)


def _apply_pre_quant_scale(
    graph: ir.Graph,
    site: ir.Node,
    name: str,
    scale: NDArray[np.float32],
    scaled: dict[tuple[object, ...], ir.Value],
) -> None:
    """Multiply the input of a site by its `pre_quant_scale`.

    Sites with the same input and an equal scale share one multiplication, found in `scaled`.
    """
    source = site.inputs[0]
    assert source is not None
    key = (id(source), scale.tobytes())
    if key not in scaled:
        constant = add_constant(graph, f"{name}.pre_quant_scale", scale)
        node = ir.node("Mul", [source, constant], name=f"{name}.rescale")
        node.outputs[0].name = f"{name}.rescaled"
        node.outputs[0].shape, node.outputs[0].type = source.shape, source.type
        graph.insert_before(site, node)
        scaled[key] = node.outputs[0]
    site.replace_input_with(0, scaled[key])


def _undo_pre_quant_scale(
    graph: ir.Graph, site: ir.Node, name: str, scale: NDArray[np.float32]
) -> None:
    """Divide the output of a site by its `pre_quant_scale`."""
    result = site.outputs[0]
    constant = add_constant(graph, f"{name}.restoring_scale", 1 / scale)
    node = ir.node("Mul", [result, constant], name=f"{name}.restore")
    restored = node.outputs[0]
    restored.name, restored.shape, restored.type = f"{name}.restored", result.shape, result.type
    result.replace_all_uses_with(restored)
    node.replace_input_with(0, result)
    graph.insert_after(site, node)


def _lower_activation(
    graph: ir.Graph,
    node: ir.Node,
    name: str,
    parameters: QuantizationParameters,
    spec: TensorSpec,
    style: QdqStyle,
    pairs: dict[tuple[object, ...], ir.Value],
) -> None:
    """Replace an activation site with a Q/DQ pair, or with an equal pair found in `pairs`."""
    unsigned = style.unsigned_activations or not spec.signed
    offset = 128 if unsigned and spec.signed else 0
    zero_point = np.array(
        int(parameters.zero_point) + offset, dtype=np.uint8 if unsigned else np.int8
    )
    scale = parameters.scale.numpy()
    source = node.inputs[0]
    assert source is not None
    key: tuple[object, ...] = (
        (id(node),)
        if style.dedicated_pairs
        else (id(source), float(scale), int(zero_point), unsigned, spec.qmin, spec.qmax)
    )
    if key not in pairs:
        also = []
        limits = np.array([spec.qmin, spec.qmax]) - int(parameters.zero_point)
        # QuantizeLinear clips to the limits of its type. Narrower limits need a Clip.
        if spec.qmax - spec.qmin < 255:
            low, high = (limits * scale).astype(np.float32)
            ends = [
                add_constant(graph, f"{name}.low", low),
                add_constant(graph, f"{name}.high", high),
            ]
            clipped = ir.node("Clip", [source, *ends], name=f"{name}.clip")
            clipped.outputs[0].name = f"{name}.clipped"
            also.append(clipped)
            source = clipped.outputs[0]
        constants = [
            add_constant(graph, f"{name}.scale", scale),
            add_constant(graph, f"{name}.zero_point", zero_point),
        ]
        codes = ir.node("QuantizeLinear", [source, *constants], name=f"{name}.quantize")
        reals = ir.node(
            "DequantizeLinear", [codes.outputs[0], *constants], name=f"{name}.dequantize"
        )
        codes.outputs[0].name = f"{name}.codes"
        replace(graph, node, reals, old=node.outputs[0], also=[*also, codes])
        pairs[key] = reals.outputs[0]
    else:
        node.replace_input_with(0, pairs[key])
        _remove_site(graph, node)


def _lower_dynamic(
    graph: ir.Graph, node: ir.Node, name: str, pairs: dict[tuple[object, ...], ir.Value]
) -> None:
    """Replace a site with a Q/DQ pair whose scale and zero point are computed while the graph runs.

    Sites with the same input share one pair, found in `pairs`.
    """
    source = node.inputs[0]
    key = (id(source), "dynamic")
    if key in pairs:
        node.replace_input_with(0, pairs[key])
        _remove_site(graph, node)
        return
    codes = ir.node("DynamicQuantizeLinear", [source], num_outputs=3, name=f"{name}.quantize")
    for value, suffix in zip(codes.outputs, ("codes", "scale", "zero_point"), strict=True):
        value.name = f"{name}.{suffix}"
    reals = ir.node("DequantizeLinear", codes.outputs, name=f"{name}.dequantize")
    replace(graph, node, reals, old=node.outputs[0], also=[codes])
    pairs[key] = reals.outputs[0]


def _lower_weight(
    graph: ir.Graph,
    site: ir.Node,
    name: str,
    weight: NDArray[np.generic],
    spec: TensorSpec | None,
    amax: torch.Tensor | None,
    rounds_up: torch.Tensor | None,
    mean: torch.Tensor | None,
) -> None:
    """Replace a weight site, and the nodes that read it, with int8 constants."""
    for consumer in site.outputs[0].consumers():
        if consumer.op_type == "Transpose":
            _lower_linear_weight(graph, consumer, name, weight, spec, amax, rounds_up, mean)
        elif spec is None:
            continue
        elif consumer.op_type == "Gather" and consumer.inputs[0] is site.outputs[0]:
            _lower_embedding_table(graph, consumer, name, weight, spec)
        else:
            raise GraphError(
                f"The weight at site `{name}` is read by a node of type {consumer.op_type}; "
                "expected Transpose (a linear layer) or Gather (an embedding table)."
            )
    _remove_site(graph, site)


def _lower_linear_weight(
    graph: ir.Graph,
    transpose: ir.Node,
    name: str,
    weight: NDArray[np.generic],
    spec: TensorSpec | None,
    amax: torch.Tensor | None,
    rounds_up: torch.Tensor | None,
    mean: torch.Tensor | None,
) -> None:
    """Fold the transpose: store a weight `(out, in)` as `(in, out)`, as MatMul reads it.

    With the `mean` of the layer's input, correct the bias.
    """
    base = name.removesuffix("._weight_quantizer")
    old = transpose.outputs[0]
    if spec is None:
        folded = add_constant(graph, f"{base}.weight_transposed", weight.T)
        old.replace_all_uses_with(folded)
        return
    codes, scale = _quantize_weight(weight, spec, amax, rounds_up)
    axis = {} if spec.axis is None else {"axis": 1 - spec.axis}
    dequantize = ir.node(
        "DequantizeLinear",
        [
            add_constant(graph, f"{base}.weight_codes", codes.T),
            add_constant(graph, f"{base}.weight_scale", scale),
            add_constant(graph, f"{base}.weight_zero_point", np.zeros(scale.shape, np.int8)),
        ],
        axis,
        name=f"{name}.dequantize",
    )
    replace(graph, transpose, dequantize, old=old)
    if mean is not None:
        rounded = codes * (scale if spec.axis is None else scale[:, None])
        shift = rounding_shift(torch.from_numpy(weight), torch.from_numpy(rounded), mean)
        for matmul in dequantize.outputs[0].consumers():
            add_to_bias(graph, matmul, shift.numpy(), suffix="corrected")


def _lower_embedding_table(
    graph: ir.Graph, gather: ir.Node, name: str, table: NDArray[np.generic], spec: TensorSpec
) -> None:
    """Look up rows of int8 codes, and multiply them by the scale."""
    base = name.removesuffix("._weight_quantizer")
    codes, scale = _quantize_weight(table, spec)
    stored = add_constant(graph, f"{base}.weight_codes", codes)
    step = add_constant(graph, f"{base}.weight_scale", scale)
    lookup = ir.node("Gather", [stored, gather.inputs[1]], name=f"{name}.gather")
    as_float = ir.node("Cast", [lookup.outputs[0]], {"to": ir.DataType.FLOAT}, name=f"{name}.cast")
    scaled = ir.node("Mul", [as_float.outputs[0], step], name=f"{name}.scale")
    replace(graph, gather, scaled, old=gather.outputs[0], also=[lookup, as_float])
    _share_table(graph, base, table, stored, step)


def _share_table(
    graph: ir.Graph,
    base: str,
    table: NDArray[np.generic],
    codes: ir.Value,
    scale: ir.Value,
) -> None:
    """Let the matmuls that multiply by the transpose of a table read its codes, and their rest."""
    decoders = [node for node in graph if _multiplies_by(node, table)]
    if not decoders:
        return
    stored, steps = constant_array(codes), constant_array(scale)
    assert stored is not None
    assert steps is not None
    rest = rest_of(table.astype(np.float32), stored.astype(np.int8), steps.astype(np.float32))
    shared = add_shared_table(
        graph, decoders[0], base, codes, add_constant(graph, f"{base}.weight_rest", rest), scale
    )
    for matmul in decoders:
        matmul.replace_input_with(1, shared)


def _multiplies_by(matmul: ir.Node, table: NDArray[np.generic]) -> bool:
    """Return whether a node is a MatMul by the transpose of a table."""
    if matmul.op_type != "MatMul" or matmul.domain:
        return False
    transpose = producer_of(matmul.inputs[1], "Transpose")
    array = constant_array(matmul.inputs[1] if transpose is None else transpose.inputs[0])
    if array is None or array.ndim != 2:
        return False
    return np.array_equal(array if transpose is not None else array.T, table)


def _quantize_weight(
    weight: NDArray[np.generic],
    spec: TensorSpec,
    amax: torch.Tensor | None = None,
    rounds_up: torch.Tensor | None = None,
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the int8 codes of a weight, in its shape, and its scale, `()` or `(channels,)`."""
    tensor = torch.from_numpy(weight.astype(np.float32))
    codes, parameters = quantize_weight(tensor, spec, amax, rounds_up)
    return codes.numpy().astype(np.int8), parameters.scale.numpy()
