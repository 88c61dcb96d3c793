"""Bounds of the values of attention, which follow from the weights.

The products of attention round the values of a channel to integers of 16 bits. Their scale is that
of the largest value in a text, which is not known before the text ends. In a causal model it must
not depend on the tokens after a token, or nothing of a prefix could be computed once for several
texts. There the scale is that of a bound. For a layer that reads `n = norm(x) * g + b`, where the
norm of `norm(x)` is at most the root of the number of channels,

    |value[c]| = |W[c] @ n + bias[c]| <= sqrt(channels) * |W[c] * g| + |W[c] @ b + bias[c]|

Values are mostly a twentieth of it or less, which leaves them 10 bits. The 8 bits of the linear
layers around them have a far larger error.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.model import EncoderModel, Floats, Layer, Linear, Norm


def value_bounds(model: EncoderModel, layer: Layer, before: Layer | None) -> Floats | None:
    """Return the largest value of each channel in a layer, `(width,)` float32.

    Args:
        model: The model. Its values are bounded only if all layers have bounds.
        layer: One of its layers.
        before: The layer before it; `None` for the first.

    Returns:
        The bounds; `None` if texts of the model can share no prefix, because tokens attend to later
        ones, or near ones only, or by relative positions, or no head reads the last token alone; if
        the layer reads states that are not normalized, or if values are not rounded by a scale of
        the text.
    """
    attention, norm = layer.attention, _input_norm(model, layer, before)
    is_free = attention.causal and attention.window is None and attention.relative is None
    reads_last = any(head.poolings == ("last",) for head in model.heads)
    if not (reads_last and is_free) or attention.value.codes is None or norm is None:
        return None
    return _bounds(layer, norm)


def _input_norm(model: EncoderModel, layer: Layer, before: Layer | None) -> Norm | None:
    """Return the norm whose output a layer projects; `None` if there is none."""
    if layer.attention_norm is not None:
        return layer.attention_norm
    if before is None:
        return None if model.embeddings.projection is not None else model.embeddings.norm
    return None if model.convolution is not None else before.residual.norm


def _bounds(layer: Layer, norm: Norm) -> Floats:
    linear = layer.attention.value
    weight = _effective_weight(linear)
    channels = weight.shape[1]
    length = np.linalg.norm(weight * norm.weight.astype(np.float64), axis=1)
    middle = np.abs(weight @ norm.bias.astype(np.float64) + linear.bias)
    # Codes of the input differ from it by half a step, a 254th of its largest value.
    rounding = 1 + math.sqrt(channels) / 254
    found: Floats = ((math.sqrt(channels) * length + middle) * rounding).astype(np.float32)
    return found


def _effective_weight(linear: Linear) -> NDArray[np.float64]:
    """Return the weight that multiplies the input before it is scaled and spread, float64."""
    assert linear.codes is not None
    assert linear.weight_scale is not None
    codes = np.asarray(linear.weight, np.int8)
    weight = codes * linear.weight_scale[:, None].astype(np.float64)
    if linear.codes.hadamard is not None:
        weight = linear.codes.hadamard.spread(weight)
    found: NDArray[np.float64] = weight * linear.codes.multiplier * np.float64(linear.codes.scale)
    return found
