"""Fake quantization by an `amax`, for the quantizers of a PyTorch model.

Rounding is `numerics.affine.round_trip`, as everywhere in this package. A range of 0 makes all
values 0, and codes become reals by a division, as in pytorch-quantization.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from qdqbert.quantization.numerics.affine import round_trip, widened
from qdqbert.quantization.spec import DEAD_AMAX

E4M3_MAX = 448.0
"""Largest value of torch's `float8_e4m3fn`."""

Axis = int | tuple[int, ...] | None
"""Axes that keep one range per index. `None` is one range for the whole tensor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Codes:
    """The integers that a tensor is quantized to.

    Attributes:
        qmin: Lowest code.
        qmax: Highest code.
    """

    qmin: int
    qmax: int


def scales_of(amax: Tensor, qmax: int) -> tuple[Tensor, Tensor]:
    """Return the divisors of reals and of codes: `amax / qmax` and `qmax / amax`.

    A range up to `DEAD_AMAX` gets an infinite step, so that only code 0 is left.

    Returns:
        Two tensors with the shape of `amax`, at least float32.
    """
    amax = widened(amax)
    dead = amax <= DEAD_AMAX
    if qmax == 0:
        dead = torch.ones_like(dead)
    # torch divides a number by a tensor through a reciprocal, which rounds twice.
    inverse = torch.full_like(amax, qmax) / amax
    return torch.where(dead, torch.inf, amax / max(qmax, 1)), torch.where(dead, 1.0, inverse)


def fake_quantize_amax(inputs: Tensor, amax: Tensor, codes: Codes) -> Tensor:
    """Quantize and dequantize a tensor symmetrically.

    The gradient passes where `|inputs| <= amax`. Values are not checked, since a GPU would have to
    wait for them.

    `amax`, the largest magnitude to cover, is at least 0 and broadcasts to `inputs`.
    """
    amax = widened(amax.detach())
    step, inverse = scales_of(amax, codes.qmax)
    return round_trip(inputs, step, codes.qmin, codes.qmax, inverse=inverse, high=amax)


def reduced_axes(axis: Axis, dims: int) -> list[int] | None:
    """Return the axes of a tensor that are not kept. `None` stands for all axes.

    Negative axes count from the end.

    Raises:
        ValueError: The tensor has no such axis.
    """
    if axis is None:
        return None
    axes = (axis,) if isinstance(axis, int) else axis
    if any(not -dims <= index < dims for index in axes):
        raise ValueError(f"axis={axis} is out of range for a tensor with {dims} axes.")
    kept = {index % dims for index in axes}
    return [index for index in range(dims) if index not in kept]
