from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qdqbert.quantization.numerics.channel_scales import ChannelStatistics, least_noise_scale


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def channels_of(x: Tensor) -> ChannelStatistics:
    low, high = torch.aminmax(x, dim=0)
    return ChannelStatistics(low=low, high=high, variance=x.var(dim=0, correction=0))


def wide(tokens: int = 500, channels: int = 8, seed: int = 0) -> Tensor:
    """Inputs with channels of very different widths."""
    return randn(tokens, channels, seed=seed) * randn(channels, seed=seed + 1).mul(2).exp()


def noise(p: Tensor, channels: ChannelStatistics, weight: Tensor) -> float:
    """The formula of the docstring in float64, with half of the noise of weights."""
    scale, w = p.double().numpy(), weight.double().numpy()
    low, high = channels.low.double().numpy() * scale, channels.high.double().numpy() * scale
    step = (max(high.max(), 0) - min(low.min(), 0)) / 255
    steps = np.abs(w / scale).max(axis=1) / 127
    inputs = step**2 / 12 * np.sum((w / scale) ** 2)
    power = np.sum(scale**2 * channels.variance.double().numpy())
    return float(inputs + 0.5 * np.sum(steps**2) / 12 * power)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), outputs=st.integers(1, 6), width=st.integers(1, 9))
def test_noise_never_grows(seed, outputs, width) -> None:
    channels = channels_of(wide(50, width, seed))
    weight = randn(outputs, width, seed=seed + 2)
    start = 1 / channels.amax.sqrt()
    found = least_noise_scale(start, channels, weight)
    # float32, as the search computes it.
    assert noise(found, channels, weight) <= noise(start, channels, weight) * (1 + 1e-5)


def test_noise_is_that_of_the_best_of_many_random_scales_or_less() -> None:
    channels, weight = channels_of(wide(channels=3)), randn(4, 3, seed=5)
    found = least_noise_scale(torch.ones(3), channels, weight)
    # Two ratios of three scales, from e^-6 to e^6.
    grid = torch.linspace(-6, 6, 121)
    others = torch.cartesian_prod(torch.zeros(1), grid, grid).exp()
    least = min(noise(each, channels, weight) for each in others)
    assert noise(found, channels, weight) <= least * 1.02


def test_rounding_a_real_product_has_the_noise_of_the_formula() -> None:
    x, weight = wide(4000, 64), randn(48, 64, seed=9)
    channels = channels_of(x)
    p = 1 / channels.amax.sqrt()
    scaled, columns = (x * p).double(), (weight / p).double()
    step = (scaled.max() - scaled.min()) / 255
    steps = columns.abs().amax(dim=1, keepdim=True) / 127
    exact = scaled @ columns.T
    of_inputs = ((scaled / step).round() * step) @ columns.T - exact
    of_weights = scaled @ ((columns / steps).round() * steps).T - exact
    found = of_inputs.var(dim=0).sum() + 0.5 * of_weights.var(dim=0).sum()
    assert float(found) == pytest.approx(noise(p, channels, weight), rel=0.1)


def test_length_of_the_start_does_not_matter() -> None:
    channels, weight = channels_of(wide()), randn(5, 8)
    start = 1 / channels.amax
    found = least_noise_scale(start, channels, weight)
    assert float(found.log().mean()) == pytest.approx(0, abs=1e-6)
    assert found.dtype == torch.float32
    other = least_noise_scale(3 * start, channels, weight)
    expected = noise(found, channels, weight)
    assert noise(other, channels, weight) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dead", ["input", "weight", "channel"])
def test_zeros_leave_scales_finite(dead) -> None:
    x, weight = wide(), randn(5, 8)
    if dead == "input":
        x = torch.zeros_like(x)
    elif dead == "weight":
        weight = torch.zeros_like(weight)
    else:
        x[:, 0], weight[:, 1] = 0, 0
    found = least_noise_scale(torch.ones(8), channels_of(x), weight)
    assert bool(torch.isfinite(found).all())
    assert bool((found > 0).all())
