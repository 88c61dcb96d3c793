"""Turns the sites of a graph into Q/DQ pairs and int8 constants.

    Site(x)              ->  DequantizeLinear(QuantizeLinear(x))       an activation
    Site(x)              ->  DequantizeLinear(QuantizeLinear(x * p))   with a pre_quant_scale p
    Site(x)              ->  DequantizeLinear(QuantizeLinear(x * p)) * (1 / p)   an add's input
    Site(x)              ->  DequantizeLinear(DynamicQuantizeLinear(x))  a dynamic one
    Transpose(Site(W))   ->  DequantizeLinear(int8 codes of W')        a linear's weight
    Gather(Site(T), i)   ->  Mul(Cast(Gather(int8 codes of T, i)), s)  an embedding table
    Site(x)              ->  x                                         a site left in float

Weights are stored as int8 once. A scale per hidden channel is multiplied after the lookup, since
a table's rows are what is looked up. The same code serves graphs that we exported and, once
they carry the same `Site` nodes, any other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from qdqbert.errors import CalibrationError, GraphError
from qdqbert.graph.edit import add_constant, constant_array, replace, tidy
from qdqbert.numerics.affine import (
    QuantizationParameters,
    clipped,
    parameters_of,
    quantize,
    weight_parameters,
)
from qdqbert.spec import QdqStyle, Range, TensorSpec, input_site_of, is_residual_input


def sites_of(model: ir.Model) -> list[ir.Node]:
    """The site nodes of a graph, in order."""
    return [node for node in model.graph if node.domain == "qdqbert" and node.op_type == "Site"]


def value_names(sited: ir.Model) -> dict[str, str]:
    """The value that each activation's site reads, by site name, as `float_graph` calls it."""
    return {
        node.attributes["site"].as_string(): str(source.name)
        for node in sites_of(sited)
        if (source := node.inputs[0]) is not None and constant_array(source) is None
    }


def float_graph(sited: ir.Model) -> ir.Model:
    """The graph with every site left in float."""
    names = [site.attributes["site"].as_string() for site in sites_of(sited)]
    return insert_qdq(sited, dict.fromkeys(names), {})


def insert_qdq(
    sited: ir.Model,
    specs: Mapping[str, TensorSpec | None],
    ranges: Mapping[str, Range],
    *,
    scales: Mapping[str, NDArray[np.float32]] | None = None,
    weight_amax: Mapping[str, torch.Tensor] | None = None,
    style: QdqStyle | None = None,
) -> ir.Model:
    """A new graph in which every site is quantized as its spec says.

    Sites that read one value with equal parameters share one pair, unless the style says not to.

    Args:
        sited: A float graph with site nodes; not changed.
        specs: By site name; `None` leaves the site in float.
        ranges: By site name, for every activation with a spec that is not dynamic.
        scales: `pre_quant_scale` by site name, `(channels,)`; weights, and inputs of residual
            adds after their pair, are divided by it.
        weight_amax: Of weights whose range is not their own, by site name, `()` or `(channels,)`.
        style: How the target wants its pairs.

    Raises:
        CalibrationError: An activation has a spec and no range.
        GraphError: A weight's site is read by something that we cannot fold it into.
    """
    style = style or QdqStyle()
    model = sited.clone()
    if style.dedicated_pairs:
        _separate_readers(model.graph)
    scales = scales or {}
    pairs: dict[tuple[object, ...], ir.Value] = {}
    rescaled: dict[tuple[object, ...], ir.Value] = {}
    for node in sites_of(model):
        name = node.attributes["site"].as_string()
        spec = specs[name]
        weight = constant_array(node.inputs[0])
        scaled = name if weight is None else input_site_of(name)
        # A weight is divided where its input is multiplied, whether or not it is quantized itself.
        scale = scales.get(scaled) if specs.get(scaled) is not None else None
        if weight is not None:
            weight = weight if scale is None else weight.astype(np.float32) * (1 / scale)
            amax = (weight_amax or {}).get(name)
            _lower_weight(model.graph, node, name, weight, spec, amax)
        elif spec is None:
            _bypass(model.graph, node)
        elif name not in ranges and not spec.dynamic:
            raise CalibrationError(f"Site `{name}` has no calibrated range. Calibrate it first.")
        else:
            if scale is not None:
                _rescale(model.graph, node, name, scale, rescaled)
                if is_residual_input(name):
                    _restore(model.graph, node, name, scale)
            reader = node.attributes.get("reader")
            label = name if reader is None else f"{name}.{reader.as_int()}"
            if spec.dynamic:
                _lower_dynamic(model.graph, node, label, pairs)
            else:
                parameters = parameters_of(ranges[name], spec)
                _lower_activation(model.graph, node, label, parameters, spec, style, pairs)
    return tidy(model)


def _separate_readers(graph: ir.Graph) -> None:
    """Gives each reader of an activation's site a site of its own, of the same name."""
    for node in [node for node in graph if node.domain == "qdqbert" and node.op_type == "Site"]:
        result = node.outputs[0]
        if constant_array(node.inputs[0]) is not None:
            continue
        uses = list(result.uses())
        for index, use in enumerate(uses if result.is_graph_output() else uses[1:], start=1):
            copy = ir.node(
                "Site",
                list(node.inputs),
                {**node.attributes, "reader": ir.AttrInt64("reader", index)},
                domain="qdqbert",
                name=f"{node.name}.{index}",
            )
            made = copy.outputs[0]
            made.name, made.shape, made.type = f"{result.name}.{index}", result.shape, result.type
            graph.insert_after(node, copy)
            use.node.replace_input_with(use.idx, made)


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    if result.is_graph_output():  # whose name has to stay
        replace(graph, node, ir.node("Identity", [source]), old=result)
    else:
        result.replace_all_uses_with(source)


def _rescale(
    graph: ir.Graph,
    site: ir.Node,
    name: str,
    scale: NDArray[np.float32],
    rescaled: dict[tuple[object, ...], ir.Value],
) -> None:
    """Multiplies what a site reads by its `pre_quant_scale`, once for all sites that agree."""
    source = site.inputs[0]
    assert source is not None
    key = (id(source), scale.tobytes())
    if key not in rescaled:
        constant = add_constant(graph, f"{name}.pre_quant_scale", scale)
        node = ir.node("Mul", [source, constant], name=f"{name}.rescale")
        node.outputs[0].name = f"{name}.rescaled"
        node.outputs[0].shape, node.outputs[0].type = source.shape, source.type
        graph.insert_before(site, node)
        rescaled[key] = node.outputs[0]
    site.replace_input_with(0, rescaled[key])


def _restore(graph: ir.Graph, site: ir.Node, name: str, scale: NDArray[np.float32]) -> None:
    """Divides what a site gives by its `pre_quant_scale`."""
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
        if spec.qmax - spec.qmin < 255:  # QuantizeLinear keeps to the limits of its type only
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
        _bypass(graph, node)


def _lower_dynamic(
    graph: ir.Graph, node: ir.Node, name: str, pairs: dict[tuple[object, ...], ir.Value]
) -> None:
    """A pair whose scale and zero point are computed where it stands, once a source."""
    source = node.inputs[0]
    key = (id(source), "dynamic")
    if key in pairs:
        node.replace_input_with(0, pairs[key])
        _bypass(graph, node)
        return
    codes = ir.node("DynamicQuantizeLinear", [source], num_outputs=3, name=f"{name}.quantize")
    for value, what in zip(codes.outputs, ("codes", "scale", "zero_point"), strict=True):
        value.name = f"{name}.{what}"
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
) -> None:
    for consumer in site.outputs[0].consumers():
        if consumer.op_type == "Transpose":
            _lower_linear_weight(graph, consumer, name, weight, spec, amax)
        elif spec is None:
            continue
        elif consumer.op_type == "Gather" and consumer.inputs[0] is site.outputs[0]:
            _lower_table(graph, consumer, name, weight, spec)
        else:
            raise GraphError(
                f"The weight at site `{name}` is read by a {consumer.op_type} node; expected "
                "Transpose (a linear) or Gather (an embedding)."
            )
    _bypass(graph, site)


def _lower_linear_weight(
    graph: ir.Graph,
    transpose: ir.Node,
    name: str,
    weight: NDArray[np.generic],
    spec: TensorSpec | None,
    amax: torch.Tensor | None,
) -> None:
    """Folds the transpose: `(out, in)` is stored as `(in, out)`, as MatMul reads it."""
    base = name.removesuffix("._weight_quantizer")
    old = transpose.outputs[0]
    if spec is None:
        folded = add_constant(graph, f"{base}.weight_transposed", weight.T)
        old.replace_all_uses_with(folded)
        return
    codes, scale = _codes(weight, spec, amax)
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


def _lower_table(
    graph: ir.Graph, gather: ir.Node, name: str, table: NDArray[np.generic], spec: TensorSpec
) -> None:
    base = name.removesuffix("._weight_quantizer")
    codes, scale = _codes(table, spec)
    looked_up = ir.node(
        "Gather",
        [add_constant(graph, f"{base}.weight_codes", codes), gather.inputs[1]],
        name=f"{name}.gather",
    )
    as_float = ir.node(
        "Cast", [looked_up.outputs[0]], {"to": ir.DataType.FLOAT}, name=f"{name}.cast"
    )
    scaled = ir.node(
        "Mul",
        [as_float.outputs[0], add_constant(graph, f"{base}.weight_scale", scale)],
        name=f"{name}.scale",
    )
    replace(graph, gather, scaled, old=gather.outputs[0], also=[looked_up, as_float])


def _codes(
    weight: NDArray[np.generic], spec: TensorSpec, amax: torch.Tensor | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    tensor = clipped(torch.from_numpy(weight.astype(np.float32)), amax, spec.axis)
    parameters = weight_parameters(tensor, spec, amax=amax)
    codes = quantize(tensor, parameters, spec).numpy().astype(np.int8)
    return codes, parameters.scale.numpy()
