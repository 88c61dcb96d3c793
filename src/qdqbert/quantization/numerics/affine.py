"""Uniform affine quantization of tensors: range -> scale and zero point -> codes -> reals.

Pure functions: no state, no modules, no in-place writes to an argument.

    codes  = clamp(round_half_even(x / scale) + zero_point, qmin, qmax)
    reals  = (codes - zero_point) * scale
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch
from torch import Tensor

from qdqbert.quantization.spec import DEAD_STEP, Range, TensorSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationParameters:
    """Scale and zero point of one tensor.

    Attributes:
        scale: Real value of one step, float32, above 0. Shape `()` or `(channels,)`.
        zero_point: Code of real 0, int32, shape of `scale`.
    """

    scale: Tensor
    zero_point: Tensor


def symmetric_parameters(amax: Tensor, spec: TensorSpec) -> QuantizationParameters:
    """Return the scale that covers `amax`, with zero point 0.

    Args:
        amax: Largest magnitude to cover, real units, at least 0. Shape `()` or `(channels,)`.
        spec: Spec of the tensor, symmetric.

    Raises:
        ValueError: `amax` is negative or not finite, or `spec` is affine.

    Source: Wu et al. 2020, arXiv:2004.09602, section 3.1.2. Differs from pytorch-quantization,
    which multiplies by `127 / amax`: this divides by `amax / 127`, as ONNX does, so ties are
    rounded as in ONNX.
    """
    if not spec.symmetric:
        raise ValueError(f"A symmetric spec is needed, got {spec}.")
    if not bool(torch.isfinite(amax).all()) or bool((amax < 0).any()):
        raise ValueError(f"`amax` must be finite and non-negative, got {amax.tolist()}.")
    scale = _usable(amax.to(torch.float32) / spec.qmax)
    return QuantizationParameters(
        scale=scale, zero_point=torch.zeros_like(scale, dtype=torch.int32)
    )


def affine_parameters(
    low: Tensor, high: Tensor, spec: TensorSpec, *, check: bool = True
) -> QuantizationParameters:
    """Return the scale of a range and a zero point that keeps real 0 exact.

    Args:
        low: Smallest value to cover, real units, at most 0. Shape `()` or `(channels,)`.
        high: Largest value to cover, real units, at least 0. Shape of `low`.
        spec: Spec of the tensor, affine.
        check: Check the values, for which a GPU has to wait.

    Raises:
        ValueError: The range is not finite or does not contain 0, or `spec` is symmetric.

    Source: Jacob et al. 2018, arXiv:1712.05877, section 3; ONNX QuantizeLinear.
    """
    if spec.symmetric:
        raise ValueError(f"An affine spec is needed, got {spec}.")
    if check and not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
        raise ValueError(f"The range must be finite, got {low.tolist()} .. {high.tolist()}.")
    if check and (bool((low > 0).any()) or bool((high < 0).any())):
        raise ValueError(f"The range must contain 0, got {low.tolist()} .. {high.tolist()}.")
    low, high = low.to(torch.float32), high.to(torch.float32)
    scale = _usable((high - low) / (spec.qmax - spec.qmin))
    zero_point = (spec.qmin - torch.round(low / scale)).clamp(spec.qmin, spec.qmax)
    return QuantizationParameters(scale=scale, zero_point=zero_point.to(torch.int32))


def parameters_of(chosen: Range, spec: TensorSpec) -> QuantizationParameters:
    """Return scale and zero point of a calibrated activation, symmetric or affine.

    With a range that covers only 0, all values become 0, as in `fake_quantize_amax`.
    """
    if chosen.covers_only_zero(spec):
        zero_point = 0 if spec.symmetric else spec.qmin
        return QuantizationParameters(
            scale=torch.tensor(DEAD_STEP), zero_point=torch.tensor(zero_point, dtype=torch.int32)
        )
    if spec.symmetric:
        return symmetric_parameters(torch.tensor(chosen.amax, dtype=torch.float32), spec)
    low, high = (torch.tensor(end, dtype=torch.float32) for end in (chosen.low, chosen.high))
    return affine_parameters(low, high, spec)


def dynamic_parameters(x: Tensor, spec: TensorSpec) -> QuantizationParameters:
    """Return scale and zero point of a tensor of any shape, from its own range.

    With `per_row`, they have the shape of the tensor, with 1 as the last size.

    Source: ONNX DynamicQuantizeLinear.
    """
    if spec.symmetric:
        size = x.detach().abs().to(torch.float32)
        amax = size.amax(dim=-1, keepdim=True) if spec.per_row else size.amax()
        # Not checked, as for affine codes: a GPU would have to wait.
        scale = _usable(amax / spec.qmax)
        return QuantizationParameters(
            scale=scale, zero_point=torch.zeros_like(scale, dtype=torch.int32)
        )
    if spec.per_row:
        low, high = torch.aminmax(x.detach(), dim=-1, keepdim=True)
    else:
        low, high = torch.aminmax(x.detach())
    return affine_parameters(low.clamp(max=0), high.clamp(min=0), spec, check=False)


def weight_parameters(
    weight: Tensor, spec: TensorSpec, *, amax: Tensor | None = None
) -> QuantizationParameters:
    """Return scale and zero point of a weight, from its largest magnitudes ("max" calibration).

    With an `adjacent_sum_limit`, the scale of a channel is enlarged until no two codes that are
    multiplied with adjacent inputs have a larger sum. 7-bit codes would be safe too, but they cost
    every channel one bit. This costs a channel only as much as its own largest sum needs.

    Args:
        weight: Any shape, floating point; `(out, in)` if the spec has an `adjacent_sum_limit`.
        spec: Symmetric; with an axis, one scale per index of it.
        amax: Replaces the weight's own, for weights that were trained with a fixed range or share
            one. Shape `()` or `(channels,)`. The weight has to be `clipped` to it. An
            `adjacent_sum_limit` enlarges it too.
    """
    weight = weight.detach()
    rows = _rows(weight, spec.axis or 0)
    largest = rows.abs().amax(dim=1)
    if amax is not None:
        largest = amax.detach().to(largest).expand_as(largest)
    if spec.adjacent_sum_limit is not None:
        largest = torch.maximum(largest, _amax_of_pairs(rows, spec))
    return symmetric_parameters(largest.amax() if spec.axis is None else largest, spec)


def within_limit(weight: Tensor, spec: TensorSpec, amax: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a weight with an `adjacent_sum_limit` is rounded from, while it is trained.

    Rounding both gives the reals of the codes of `quantize_weight`.

    `weight` is `(out, in)`, and `amax`, the range that it is trained with, broadcasts to it.

    Returns:
        The weight, clipped to the range, and the range that the limit needs, in its shape.
    """
    weight = torch.clamp(weight, -amax, amax)
    pairs = _amax_of_pairs(_rows(weight.detach(), spec.axis or 0), spec)
    needed = pairs.amax() if amax.numel() == 1 else pairs.reshape(amax.shape)
    return weight, torch.maximum(amax, needed)


def _amax_of_pairs(rows: Tensor, spec: TensorSpec) -> Tensor:
    """Return the range of each row that keeps sums of adjacent codes within the limit."""
    assert spec.adjacent_sum_limit is not None
    # Rounding adds up to half a step to each of the two codes.
    return _adjacent_sums(rows).amax(dim=1) * spec.qmax / (spec.adjacent_sum_limit - 1)


def quantize_weight(
    weight: Tensor, spec: TensorSpec, amax: Tensor | None = None, rounds_up: Tensor | None = None
) -> tuple[Tensor, QuantizationParameters]:
    """Return the codes of a weight as floats, in its shape, and their scale and zero point.

    Args:
        weight: Any shape, floating point; `(out, in)` if the spec has an `adjacent_sum_limit`.
        spec: Symmetric; with an axis, one scale per index of it.
        amax: Range that the weight was trained with or shares, `()` or `(channels,)`. `None` uses
            the weight's own.
        rounds_up: Whether each weight becomes the code above it instead of the one below it,
            booleans in the shape of the weight; see `weight_rounding.choose_rounding`. `None`
            rounds to the nearest code.
    """
    weight = clipped(weight.detach().to(torch.float32), amax, spec.axis)
    parameters = weight_parameters(weight, spec, amax=amax)
    if rounds_up is None:
        return quantize(weight, parameters, spec), parameters
    below, above = adjacent_codes(weight, parameters, spec)
    return torch.where(rounds_up.to(below.device), above, below), parameters


def spread_weight(
    weight: Tensor, spec: TensorSpec, amax: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return what becomes codes of a weight, and its range, which is of the weight as it is."""
    if spec.hadamard is None:
        return weight, amax
    return spec.hadamard.spread_weight(clipped(weight, amax, spec.axis)), None


def rounding_shift(weight: Tensor, rounded: Tensor, mean: Tensor) -> Tensor:
    """Return the loss of a linear layer's mean output by rounding its weight.

    Added to the bias, it restores the mean: `E[W x] - E[W' x] = (W - W') E[x]`.

    Args:
        weight: The weight before it was rounded, `(out, in)`.
        rounded: The weight after it was rounded, `(out, in)`.
        mean: Mean over tokens of the input `x` that the weight is multiplied with, `(in,)`.

    Returns:
        Shift of each output, `(out,)`, float32.

    Source: Nagel et al. 2019, arXiv:1906.04721, section 4.2, with the mean measured.
    """
    return ((weight.double() - rounded.double()) @ mean.double()).to(torch.float32)


def clipped(weight: Tensor, amax: Tensor | None, axis: int | None) -> Tensor:
    """Clip a weight to the range that it was trained with.

    Args:
        weight: Any shape.
        amax: Largest magnitude, `()` or `(channels,)`. `None` returns the weight unchanged.
        axis: Axis of the channels.
    """
    if amax is None:
        return weight
    limit = amax.detach().to(weight)
    if limit.dim():
        limit = limit.view([-1 if i == (axis or 0) else 1 for i in range(weight.dim())])
    return torch.minimum(torch.maximum(weight, -limit), limit)


def quantize(x: Tensor, parameters: QuantizationParameters, spec: TensorSpec) -> Tensor:
    """Return the codes of `x` as floats: round half to even, add the zero point, saturate."""
    scale, zero_point = _along(parameters, x, spec.axis)
    # In place: tables of embeddings are the largest tensors of a model.
    return (x / scale).round_().add_(zero_point).clamp_(spec.qmin, spec.qmax)


def adjacent_codes(
    x: Tensor, parameters: QuantizationParameters, spec: TensorSpec
) -> tuple[Tensor, Tensor]:
    """Return the codes below and above `x` as floats; `quantize` returns one of the two."""
    scale, zero_point = _along(parameters, x, spec.axis)
    below = torch.floor(x / scale) + zero_point
    return below.clamp(spec.qmin, spec.qmax), (below + 1).clamp(spec.qmin, spec.qmax)


def dequantize(codes: Tensor, parameters: QuantizationParameters, spec: TensorSpec) -> Tensor:
    """Return the real values of codes. Keeps their shape."""
    scale, zero_point = _along(parameters, codes, spec.axis)
    return (codes - zero_point).mul_(scale)


def fake_quantize(x: Tensor, parameters: QuantizationParameters, spec: TensorSpec) -> Tensor:
    """Quantize and dequantize a tensor, with a straight-through gradient.

    The gradient is 1 where the code does not saturate, and 0 elsewhere.

    Source: straight-through estimator with clipping, Bengio et al. 2013, arXiv:1308.3432.
    """
    scale, zero_point = _along(parameters, x, spec.axis)
    zero = None if spec.symmetric else zero_point
    return round_trip(x, scale, spec.qmin, spec.qmax, zero_point=zero)


def round_trip(
    x: Tensor,
    scale: Tensor,
    qmin: int,
    qmax: int,
    *,
    zero_point: Tensor | None = None,
    inverse: Tensor | None = None,
    low: Tensor | None = None,
    high: Tensor | None = None,
) -> Tensor:
    """Compute `(clamp(round(x / scale) + zero_point) - zero_point) * scale`.

    Every fake quantization of this package uses this function, so all round in the same way: to
    even, after a division, as ONNX's QuantizeLinear. It works in place on one buffer, which makes a
    training step faster than torch's own fake-quantize kernels do (`benchmarks/fake_quant.py`).

    Args:
        x: Any shape, floating point. Half precision is computed in float32 and cast back.
        scale: Real value of a step, above 0, broadcasts to `x`.
        qmin: Lowest code.
        qmax: Highest code.
        zero_point: Code of real 0, broadcasts to `x`. 0 if `None`.
        inverse: Divide codes by it instead of multiplying them by `scale`, as pytorch-quantization
            does. The result differs in the last bit.
        low: Smallest value whose gradient passes, broadcasts to `x`. `-high` if `None`.
        high: Largest value whose gradient passes. If it is `None`, the gradient passes wherever the
            code does not saturate.
    """
    result: Tensor = _RoundTrip.apply(  # type: ignore[no-untyped-call]
        x, scale, qmin, qmax, zero_point, inverse, low, high
    )
    return result


class _RoundTrip(torch.autograd.Function):
    """Quantize and dequantize, with a straight-through gradient inside the range."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        scale: Tensor,
        qmin: int,
        qmax: int,
        zero_point: Tensor | None,
        inverse: Tensor | None,
        low: Tensor | None,
        high: Tensor | None,
    ) -> Tensor:
        real = widened(x)
        codes = torch.round(real / scale)
        if zero_point is not None:
            codes += zero_point
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            if high is None:
                inside = (codes >= qmin) & (codes <= qmax)
            elif low is None:
                inside = real.abs() <= high
            else:
                inside = (real >= low) & (real <= high)
            ctx.save_for_backward(inside)
        codes = codes.clamp_(qmin, qmax)
        if zero_point is not None:
            codes -= zero_point
        reals = codes.mul_(scale) if inverse is None else codes.div_(inverse)
        return reals.to(x.dtype)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * inside, None, None, None, None, None, None, None


def widened(x: Tensor) -> Tensor:
    """Return `x` in at least float32, in which half precision is quantized."""
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def reduce_amax(
    input: Tensor, axis: int | Collection[int] | None = None, keepdims: bool = True
) -> Tensor:
    """Return the largest magnitude over some axes, without a gradient.

    Args:
        input: Any shape.
        axis: Axes that are reduced. `None` reduces all.
        keepdims: Keep reduced axes with size 1. A single value is always a scalar.

    Raises:
        ValueError: More axes are named than `input` has.

    Source: pytorch-quantization's `utils.reduce_amax`.
    """
    with torch.no_grad():
        if axis is None:
            return input.abs().amax()
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        if len(axes) > input.dim():
            raise ValueError("Cannot reduce more axes than tensor's dim.")
        # torch would treat no axes as all axes.
        amax = torch.amax(input.abs(), dim=axes, keepdim=keepdims) if axes else input.abs()
        return amax.squeeze() if amax.numel() == 1 else amax


def _rows(weight: Tensor, axis: int) -> Tensor:
    """Return one row per channel. Shape `(channels, rest)`."""
    return weight.movedim(axis, 0).reshape(weight.shape[axis], -1)


def _adjacent_sums(rows: Tensor) -> Tensor:
    """Return magnitudes of the sums of weights 0 and 1, 2 and 3, ... Shape `(channels, pairs)`."""
    if rows.shape[1] % 2:
        rows = torch.nn.functional.pad(rows, (0, 1))
    return rows.view(rows.shape[0], -1, 2).sum(dim=2).abs()


def _usable(scale: Tensor) -> Tensor:
    # An all-zero or denormal range has no usable step. Any positive step maps it to the zero point.
    # 1 keeps the exported graph readable and its reciprocal finite.
    return torch.where(scale >= torch.finfo(scale.dtype).tiny, scale, torch.ones_like(scale))


def _along(
    parameters: QuantizationParameters, x: Tensor, axis: int | None
) -> tuple[Tensor, Tensor]:
    """Reshape parameters `(channels,)` to broadcast along `axis` of `x`."""
    if axis is None:
        return parameters.scale, parameters.zero_point
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameters.scale.view(shape), parameters.zero_point.view(shape)
