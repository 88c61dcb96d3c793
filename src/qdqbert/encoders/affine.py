"""Uniform affine quantization of constants with numpy.

The codes and scales are, bit for bit, those that `quantization.numerics.affine` computes with
torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.model import Floats
from qdqbert.quantization.spec import DEAD_STEP, Range, TensorSpec

Bools = NDArray[np.bool_]

# Weights that become codes at a time: they stay in the second-level cache.
_TOGETHER = 2**16


def parameters_of(chosen: Range, spec: TensorSpec) -> tuple[float, int]:
    """Return scale and zero point of a calibrated activation, symmetric or affine.

    Source: see `quantization.numerics.affine.parameters_of`.
    """
    if chosen.covers_only_zero(spec):
        return DEAD_STEP, 0 if spec.symmetric else spec.qmin
    if spec.symmetric:
        return float(_usable(np.float32(chosen.amax) / np.float32(spec.qmax))), 0
    low, high = np.float32(chosen.low), np.float32(chosen.high)
    scale = _usable((high - low) / np.float32(spec.qmax - spec.qmin))
    zero_point = np.clip(spec.qmin - np.rint(low / scale), spec.qmin, spec.qmax)
    return float(scale), int(zero_point)


def quantize_weight(
    weight: Floats,
    spec: TensorSpec,
    amax: Floats | None = None,
    rounds_up: Bools | None = None,
    *,
    fits_closely: bool = False,
) -> tuple[NDArray[np.int8], Floats]:
    """Return the codes of a weight, and their scale, `()` or `(channels,)`.

    Args:
        weight: `(out, in)`, or a table `(rows, width)`.
        spec: Symmetric; with an axis, one scale per index of it.
        amax: Range that the weight was trained with or shares, `()` or `(channels,)`. `None` uses
            the weight's own.
        rounds_up: Whether each weight becomes the code above it instead of the one below it,
            `(out, in)`. `None` rounds to the nearest code.
        fits_closely: Enlarge scales for an `adjacent_sum_limit` only as far as the nearest codes
            need it. `quantization.numerics.affine` leaves room for weights that round to either
            side.
    """
    weight = clipped(weight, spec, amax)
    scale = _scales_of(weight, spec, amax, fits_closely=fits_closely)
    steps = np.broadcast_to(_along(scale, spec.axis), weight.shape)
    codes = np.empty(weight.shape, np.int8)
    count = max(1, _TOGETHER // max(1, weight.shape[1]))
    for start in range(0, len(weight), count):
        rows = slice(start, start + count)
        reals = weight[rows] / steps[rows]
        if rounds_up is None:
            np.rint(reals, out=reals)
        else:
            np.floor(reals, out=reals)
            reals += rounds_up[rows]
        codes[rows] = np.clip(reals, spec.qmin, spec.qmax, out=reals)
    return codes, scale


def clipped(weight: Floats, spec: TensorSpec, amax: Floats | None) -> Floats:
    """Return a weight within its range, `()` or `(channels,)`; the weight itself without one."""
    if amax is None:
        return weight
    limit = _along(amax, None if amax.ndim == 0 else spec.axis or 0)
    return np.minimum(np.maximum(weight, -limit), limit)


def rounding_shift(weight: Floats, rounded: Floats, mean: Floats) -> Floats:
    """Return the loss of a linear layer's mean output by rounding its weight.

    Args:
        weight: The weight before it was rounded, `(out, in)`.
        rounded: The weight after it was rounded, `(out, in)`.
        mean: Mean over tokens of the input that the weight is multiplied with, `(in,)`.

    Source: see `quantization.numerics.affine.rounding_shift`.
    """
    errors = weight.astype(np.float64) - rounded
    return (errors @ mean.astype(np.float64)).astype(np.float32)


def _scales_of(
    weight: Floats, spec: TensorSpec, amax: Floats | None, *, fits_closely: bool
) -> Floats:
    """Return the scale of a weight that is within its range, `()` or `(channels,)`."""
    other = None if spec.axis is None else 1 - spec.axis
    own = np.maximum(weight.max(axis=other, initial=0), -weight.min(axis=other, initial=0))
    if amax is not None:
        own = np.broadcast_to(amax.max() if spec.axis is None else amax, own.shape)
    largest = own.astype(np.float32)
    limit = spec.adjacent_sum_limit
    if limit is not None and not fits_closely:
        # Rounding adds up to half a step to each of the two codes.
        sums = _adjacent_sums(weight).max(axis=other, initial=0)
        largest = np.maximum(largest, sums * np.float32(spec.qmax) / np.float32(limit - 1))
    scale = _usable(largest / np.float32(spec.qmax))
    return _enlarged(scale, weight, limit) if limit is not None and fits_closely else scale


def _enlarged(scale: Floats, weight: Floats, limit: int) -> Floats:
    """Return scales that are just large enough for the limit on sums of the nearest codes."""
    # The last channel of an odd number is next to padding. A single scale counts as one long row's.
    wide = np.pad(weight, [(0, 0), (0, weight.shape[1] % 2)]).reshape(scale.size, -1)
    sums = _adjacent_sums(wide).max(axis=1, initial=0)
    found = np.maximum(scale.reshape(-1), sums / np.float32(limit))
    left = np.arange(len(wide))
    while left.size:
        codes = np.rint(wide[left] / found[left, None])
        # Rounding can add one to a sum that fits.
        left = left[_adjacent_sums(codes).max(axis=1, initial=0) > limit]
        found[left] *= np.float32(1.01)
    return np.asarray(found).reshape(scale.shape)


def _adjacent_sums(weight: Floats) -> Floats:
    """Return magnitudes of the sums of columns 0 and 1, 2 and 3, ..."""
    wide = weight if weight.shape[1] % 2 == 0 else np.pad(weight, [(0, 0), (0, 1)])
    sums: Floats = np.abs(wide[:, ::2] + wide[:, 1::2])
    return sums


def _along(values: Floats, axis: int | None) -> Floats:
    """Reshape values of channels to broadcast along an axis of a matrix."""
    return values if axis is None else np.expand_dims(values, 1 - axis)


def _usable(scale: Floats | np.float32) -> Floats:
    """Replace scales of ranges that are too narrow for a step by 1."""
    return np.where(scale >= np.finfo(np.float32).tiny, scale, np.float32(1))
