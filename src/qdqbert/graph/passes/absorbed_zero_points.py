"""Move zero points of linear layers' inputs into biases, for runtimes with symmetric codes.

    q = QuantizeLinear(x, s, z)            q' = QuantizeLinear(x + s (z - m), s, 0)
    Add(MatMul(DequantizeLinear(q), W), b)  ->  Add(MatMul(DequantizeLinear(q'), W), b')

with b' = b - s (z - m) (1 ... 1) W. The middle m is 128 where q is uint8 and 0 where it is int8. It
is z itself where a Clip in front leaves so few codes that every q - z is an int8. The codes are the
same except for m: with q' = q - m, s (q - z) W = s q' W - s (z - m) W. GELU's outputs, which are
hardly ever below zero, keep all of their 256 codes this way. Symmetric codes would leave half of
them unused. The sum in front of the pair is one more step of the elementwise chain that makes x.

Source: the shifts of Outlier Suppression+ (Wei et al. 2023, arXiv:2304.09145).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.graph.edit import (
    add_constant,
    add_to_bias,
    constant_array,
    producer_of,
    tidy,
)


def absorb_zero_points(model: ir.Model, *, shift_bits: int = 24) -> ir.Model:
    """Apply the rewrite; change and return `model`.

    A pair that anything but the matmul of a linear layer reads stays as it is.

    Args:
        model: A graph with Q/DQ pairs.
        shift_bits: Significant bits of the shift: as many as the graph's float type has. Then the
            bias takes back exactly the shift of the input.
    """
    for node in list(model.graph):
        if node.op_type == "QuantizeLinear" and len(node.inputs) > 2:
            scale, zero_point = (constant_array(value) for value in node.inputs[1:3])
            if scale is None or zero_point is None or scale.size > 1:
                continue
            if _is_read_by_linear_layers(node):
                _absorb(model.graph, node, scale.item(), zero_point, shift_bits)
    return tidy(model)


def absorb_zero_points_in_half(model: ir.Model) -> ir.Model:
    """Apply the rewrite with shifts that float16 represents exactly."""
    return absorb_zero_points(model, shift_bits=11)


def _is_read_by_linear_layers(quantize: ir.Node) -> bool:
    readers = list(quantize.outputs[0].consumers())
    made = [quantize.outputs[0], *(reader.outputs[0] for reader in readers)]
    if any(value.is_graph_output() for value in made):
        return False
    uses = [use for reader in readers for use in reader.outputs[0].uses()]
    return all(reader.op_type == "DequantizeLinear" for reader in readers) and all(
        use.idx == 0 and _factors(use.node) is not None for use in uses
    )


def _absorb(
    graph: ir.Graph,
    quantize: ir.Node,
    scale: float,
    zero_point: NDArray[np.generic],
    shift_bits: int,
) -> None:
    name, source = str(quantize.name).removesuffix(".quantize"), quantize.inputs[0]
    assert source is not None
    middle = 128 if zero_point.dtype == np.uint8 else 0
    if _is_clipped_to_int8(source, scale):
        middle = zero_point.item()
    shift = _shortened(scale * (zero_point.item() - middle), shift_bits)
    zero = add_constant(graph, f"{name}.absorbed", np.zeros((), np.int8))
    for reader in list(quantize.outputs[0].consumers()):
        for use in list(reader.outputs[0].uses()) if shift else ():
            _correct(graph, use.node, shift)
        reader.replace_input_with(2, zero)
    if shift:
        amount = add_constant(graph, f"{name}.shift", np.asarray(shift))
        added = ir.node("Add", [source, amount], name=f"{name}.shift")
        made = added.outputs[0]
        made.name, made.shape, made.type = f"{name}.shifted", source.shape, source.type
        graph.insert_before(quantize, added)
        quantize.replace_input_with(0, made)
    quantize.replace_input_with(2, zero)
    quantize.outputs[0].dtype = ir.DataType.INT8


def _is_clipped_to_int8(value: ir.Value, scale: float) -> bool:
    clip = producer_of(value, "Clip")
    bounds = [constant_array(each) for each in clip.inputs[1:]] if clip is not None else []
    return len(bounds) == 2 and all(
        each is not None and -128 <= np.round(each.item() / scale) <= 127 for each in bounds
    )


def _shortened(value: float, bits: int) -> np.float32:
    part, exponent = np.frexp(value)
    return np.float32(np.ldexp(np.round(part * 2**bits), exponent - bits))


def _correct(graph: ir.Graph, matmul: ir.Node, shift: np.float32) -> None:
    """Subtract the effect of the input's shift from the bias of a linear layer."""
    factors = _factors(matmul)
    assert factors is not None
    weight = factors[0].astype(np.float32) * factors[1].astype(np.float32)
    excess = (np.float64(shift) * weight.astype(np.float64).sum(axis=0)).astype(np.float32)
    add_to_bias(graph, matmul, -excess, suffix="absorbed")


def _factors(matmul: ir.Node) -> tuple[NDArray[np.generic], NDArray[np.generic]] | None:
    """Return the weight of a linear layer as codes `(in, out)` and scale.

    A float weight is returned with scale 1. Returns `None` for nodes that are not linear layers.
    """
    if matmul.op_type != "MatMul":
        return None
    dequantize = producer_of(matmul.inputs[1], "DequantizeLinear")
    if dequantize is None:
        plain = constant_array(matmul.inputs[1])
        return None if plain is None or plain.ndim != 2 else (plain, np.ones((), np.float32))
    codes, scale = (constant_array(value) for value in dequantize.inputs[:2])
    if codes is None or codes.ndim != 2 or scale is None:
        return None
    if scale.size > 1 and dequantize.attributes.get_int("axis", 1) % 2 == 0:
        return None
    return codes, scale
