"""Read Q/DQ pairs of activations."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import Codes, Floats, RoundTrip
from qdqbert.graph.edit import constant_array, producer_of
from qdqbert.graph.encoder.refusal import refuse


def quantizer_of(dequantize: ir.Node | None) -> ir.Node | None:
    """Return the node that quantizes what a DequantizeLinear reads; `None` for other nodes."""
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.domain:
        return None
    codes = dequantize.inputs[0]
    static = producer_of(codes, "QuantizeLinear")
    return static if static is not None else producer_of(codes, "DynamicQuantizeLinear")


def pair_of(value: ir.Value | None) -> tuple[ir.Node, ir.Node] | None:
    """Return QuantizeLinear and DequantizeLinear of the Q/DQ pair that computes a value, if any."""
    dequantize = producer_of(value, "DequantizeLinear")
    quantize = quantizer_of(dequantize)
    return None if dequantize is None or quantize is None else (quantize, dequantize)


def split_channel_factor(value: ir.Value | None) -> tuple[ir.Value, Floats, ir.Node] | None:
    """Split a product with one constant for each channel.

    Returns:
        The other factor, the constant `(channels,)` and the Mul; `None` for other values.
    """
    node = producer_of(value, "Mul")
    if node is None:
        return None
    for factor, other in (node.inputs, reversed(node.inputs)):
        array = constant_array(factor)
        if array is not None and array.ndim == 1 and array.dtype == np.float32:
            assert other is not None
            return other, array.astype(np.float32), node
    return None


def is_dynamic(quantize: ir.Node) -> bool:
    """Return whether the scale is computed while the graph runs."""
    return quantize.op_type == "DynamicQuantizeLinear"


def linear_codes(quantize: ir.Node, dequantize: ir.Node, factor: Floats | None) -> Codes:
    """Return the codes of the input of a linear layer.

    Args:
        quantize: QuantizeLinear or DynamicQuantizeLinear.
        dequantize: DequantizeLinear.
        factor: `pre_quant_scale`, `(in,)`, or `None`.

    Raises:
        GraphError: They are not 8-bit codes with one scale.
    """
    by = np.ones((), np.float32) if factor is None else factor
    if is_dynamic(quantize):
        return Codes(scale=1.0, zero_point=0, multiplier=by, dynamic=True)
    scale, zero_point, low, _ = _parameters(quantize, dequantize)
    multiplier = (by.astype(np.float64) / scale).astype(np.float32)
    return Codes(scale=scale, zero_point=zero_point - low, multiplier=multiplier)


def round_trip(dequantize: ir.Node, *, factor: float = 1.0) -> RoundTrip:
    """Return the fake quantization that a Q/DQ pair is.

    Args:
        dequantize: DequantizeLinear of the pair.
        factor: What the tensor of the model is multiplied by before the pair.

    Raises:
        GraphError: They are not 8-bit codes with one scale.
    """
    quantize = quantizer_of(dequantize)
    assert quantize is not None
    if is_dynamic(quantize):
        raise refuse(quantize, "computes a range at run time, outside of a linear layer")
    scale, zero_point, low, high = _parameters(quantize, dequantize)
    return RoundTrip(scale=scale / factor, zero_point=zero_point, low=low, high=high)


def _parameters(quantize: ir.Node, dequantize: ir.Node) -> tuple[float, int, int, int]:
    """Return scale, zero point, and the smallest and largest code of a pair."""
    if producer_of(quantize.inputs[0], "Clip") is not None:
        raise refuse(quantize, "uses only a part of its 256 codes, behind a Clip")
    first, second = (_constants(node) for node in (quantize, dequantize))
    if first != second:
        raise refuse(dequantize, "has another scale or zero point than its QuantizeLinear")
    scale, zero_point, is_signed = first
    low, high = (-128, 127) if is_signed else (0, 255)
    return scale, zero_point, low, high


def _constants(node: ir.Node) -> tuple[float, int, bool]:
    """Return scale, zero point and sign of the codes of QuantizeLinear or DequantizeLinear."""
    scale = constant_array(node.inputs[1])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero_point = np.zeros((), np.uint8) if given is None else constant_array(given)
    if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
        raise refuse(node, "needs one constant scale and zero point")
    if zero_point.dtype not in (np.int8, np.uint8) or scale.dtype != np.float32:
        raise refuse(node, f"has codes of type {zero_point.dtype} and scales of {scale.dtype}")
    step = float(scale.item())
    if not 0 < step < np.inf:
        raise refuse(node, f"has the scale {step}")
    return step, int(zero_point.item()), zero_point.dtype == np.int8
