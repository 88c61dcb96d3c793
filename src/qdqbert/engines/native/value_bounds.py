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


def value_bounds(model: EncoderModel) -> list[Floats] | None:
    """Return the largest value of each channel in each layer, `(width,)` float32.

    Returns:
        The bounds; `None` if texts of the model can share no prefix, because tokens attend to later
        ones, or near ones only, or by relative positions, or no head reads the last token alone; if
        a layer reads states that are not normalized, or if values are not rounded by a scale of the
        text.
    """
    if not any(head.poolings == ("last",) for head in model.heads):
        return None
    attentions = [layer.attention for layer in model.layers]
    if not all(each.causal for each in attentions):
        return None
    if any(each.window is not None or each.relative is not None for each in attentions):
        return None
    if any(each.value.codes is None for each in attentions):
        return None
    norms = [_input_norm(model, index) for index in range(len(model.layers))]
    if None in norms:
        return None
    return [
        _bounds(layer, norm)
        for layer, norm in zip(model.layers, norms, strict=True)
        if norm is not None
    ]


def _input_norm(model: EncoderModel, index: int) -> Norm | None:
    """Return the norm whose output a layer projects; `None` if there is none."""
    layer = model.layers[index]
    if layer.attention_norm is not None:
        return layer.attention_norm
    if index == 0:
        return None if model.embeddings.projection is not None else model.embeddings.norm
    return None if model.convolution is not None else model.layers[index - 1].residual.norm


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
    weight = linear.weight * linear.weight_scale[:, None].astype(np.float64)
    if linear.codes.hadamard is not None:
        weight = linear.codes.hadamard.spread(weight)
    found: NDArray[np.float64] = weight * linear.codes.multiplier * np.float64(linear.codes.scale)
    return found
