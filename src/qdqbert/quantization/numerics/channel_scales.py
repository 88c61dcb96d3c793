"""Scales of the channels of an input that add the least noise to the outputs of linear layers."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float64]

# Steps between the ends of a range of 8-bit codes, and codes on one side of zero.
_INPUT_STEPS = 255
_WEIGHT_STEPS = 127
# Share of the noise of weights that `weight_rounding` leaves.
_ROUNDED_NOISE = 0.5
_TINY = torch.finfo(torch.float32).tiny

_UPDATES = 100
_RATE = 0.1
_BETAS = (0.9, 0.999)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """Statistics of an input of linear layers; each tensor is float32 `(channels,)`.

    Attributes:
        variance: Variance around the channel's own mean.
    """

    low: Tensor
    high: Tensor
    variance: Tensor

    @property
    def amax(self) -> Tensor:
        """Largest magnitude of each channel."""
        return torch.maximum(-self.low, self.high)


def least_noise_scale(start: Tensor, channels: ChannelStatistics, weight: Tensor) -> Tensor:
    """Search for the `pre_quant_scale` with the least noise in the outputs of a linear layer.

    With the scale `p`, the layer multiplies codes of `x p` with codes of `W / p`. If rounding
    errors are independent and uniform, the variance of the outputs' error, summed over outputs, is

        step_x^2 / 12 * sum_ij (W_ij / p_j)^2 + sum_i step_i^2 / 12 * sum_j p_j^2 var(x_j)

    where `step_x` is a 255th of the range of `x p`, and `step_i` a 127th of the largest `W_ij /
    p_j` of output `i`. The mean of an input does not count, because the bias takes its error back.
    A larger `p_j` lowers the first term until channel `j` decides the range, and raises the second.
    The search follows the gradient of the sum's logarithm with Adam (Kingma and Ba 2015,
    arXiv:1412.6980).

    Args:
        start: Where the search starts, `(channels,)`, above 0.
        channels: Statistics of the input.
        weight: Weights of all linear layers that read the input, `(outputs, channels)`.

    Returns:
        The best scale found, float32 `(channels,)` on the CPU, with a geometric mean of 1. It is
        never worse than `start`.
    """
    # numpy, so that all processes of a calibration find the same bits, and on one thread.
    low, high, variance = (
        each.cpu().double().numpy() for each in (channels.low, channels.high, channels.variance)
    )
    magnitudes = weight.detach().cpu().float().abs().numpy()
    energy = np.square(magnitudes).sum(axis=0, dtype=np.float64)
    log_p = start.cpu().double().log().numpy()
    best, found = np.inf, log_p
    scaled = np.empty_like(magnitudes)
    first, second = np.zeros_like(log_p), np.zeros_like(log_p)
    for update in range(1, _UPDATES + 1):
        noise, gradient = _noise(log_p, low, high, variance, magnitudes, energy, scaled)
        if noise < best:
            best, found = noise, log_p
        first = _BETAS[0] * first + (1 - _BETAS[0]) * gradient
        second = _BETAS[1] * second + (1 - _BETAS[1]) * np.square(gradient)
        mean = first / (1 - _BETAS[0] ** update)
        deviation = np.sqrt(second / (1 - _BETAS[1] ** update)) + 1e-8
        # The rate falls to a hundredth at the end.
        rate = _RATE * (1 - 0.99 * (update - 1) / _UPDATES)
        log_p = log_p - rate * mean / deviation
    return torch.from_numpy(np.exp(found - found.mean()).astype(np.float32))


def _noise(
    log_p: Vector,
    low: Vector,
    high: Vector,
    variance: Vector,
    magnitudes: NDArray[np.float32],
    energy: Vector,
    scaled: NDArray[np.float32],
) -> tuple[float, Vector]:
    """Return the logarithm of the noise of a scale, and its gradient by the scale's logarithm.

    `energy` has the sums of the squares of `magnitudes` over the outputs. `scaled` is memory of
    their shape, `(outputs, channels)`. The other arrays are `(channels,)`.
    """
    p = np.exp(log_p)
    highs, lows = p * high, p * low
    top, bottom = highs.argmax(), lows.argmin()
    above, below = max(highs[top], 0.0), min(lows[bottom], 0.0)
    ends = above - below
    np.multiply(magnitudes, (1 / p).astype(np.float32), out=scaled)
    # Only the largest weight of each output has a gradient.
    largest = scaled.argmax(axis=1)
    steps = np.square(magnitudes[np.arange(len(largest)), largest] / p[largest])
    spread, squares = energy / np.square(p), np.square(p) * variance
    of_inputs = (ends / _INPUT_STEPS) ** 2 * spread.sum()
    share = _ROUNDED_NOISE / _WEIGHT_STEPS**2
    of_weights = share * steps.sum() * squares.sum()
    # An input that is always 0 has no noise.
    total = of_inputs + of_weights + _TINY
    slope = -2 * (ends / _INPUT_STEPS) ** 2 * spread + 2 * share * steps.sum() * squares
    slope -= 2 * share * squares.sum() * np.bincount(largest, steps, len(p))
    # The ends of the range belong to one channel each.
    factor = 2 * ends / _INPUT_STEPS**2 * spread.sum()
    slope[top] += factor * above
    slope[bottom] -= factor * below
    return float(np.log(total)), slope / total
