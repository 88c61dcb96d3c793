"""Scales of the channels of an input that add the least noise to the outputs of linear layers."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from qdqbert.numerics.threads import one_torch_thread

# Steps between the ends of a range of 8-bit codes, and codes on one side of zero.
_INPUT_STEPS = 255
_WEIGHT_STEPS = 127
# Share of the noise of weights that `weight_rounding` leaves.
_ROUNDED_NOISE = 0.5
_TINY = torch.finfo(torch.float32).tiny

_UPDATES = 100
_RATE = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """What an input of linear layers looks like; each tensor is float32 `(channels,)`.

    Attributes:
        low: Lowest value.
        high: Highest value.
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
    The search follows the gradient of the sum's logarithm with Adam.

    Args:
        start: Where the search starts, `(channels,)`, above 0.
        channels: Statistics of the input.
        weight: Weights of all linear layers that read the input, `(outputs, channels)`.

    Returns:
        The best scale found, float32 `(channels,)` on the CPU, with a geometric mean of 1. It is
        never worse than `start`.
    """
    # Everything on the CPU, so that all processes of a calibration find the same bits. The search
    # has its own gradients, whatever the caller does about those of the model.
    with one_torch_thread(), torch.inference_mode(False), torch.enable_grad():
        low, high, variance = (
            each.to("cpu", torch.float32, copy=True)
            for each in (channels.low, channels.high, channels.variance)
        )
        magnitudes = weight.detach().to("cpu", torch.float32).abs()
        energy = magnitudes.square().sum(dim=0)
        log_p = start.to("cpu", torch.float32, copy=True).log().requires_grad_()
        optimizer = torch.optim.Adam([log_p], lr=_RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=_UPDATES)
        best, found = torch.inf, log_p.detach().clone()
        scaled = torch.empty_like(magnitudes)
        for _ in range(_UPDATES):
            p = log_p.exp()
            ends = (p * high).amax().clamp_min(0) - (p * low).amin().clamp_max(0)
            # Only the largest weight of each output has a gradient. numpy finds it 8 times as fast.
            with torch.no_grad():
                torch.mul(magnitudes, 1 / p, out=scaled)
            largest = torch.from_numpy(scaled.numpy().argmax(axis=1))
            steps = magnitudes.gather(1, largest[:, None])[:, 0] / p[largest]
            of_inputs = (ends / _INPUT_STEPS).square() * (energy / p.square()).sum()
            of_weights = (steps / _WEIGHT_STEPS).square().sum() * (p.square() * variance).sum()
            # An input that is always 0 has no noise.
            noise = (of_inputs + _ROUNDED_NOISE * of_weights + _TINY).log()
            if noise.item() < best:
                best, found = noise.item(), log_p.detach().clone()
            (log_p.grad,) = torch.autograd.grad(noise, [log_p])
            optimizer.step()
            schedule.step()
        return torch.exp(found - found.mean())
