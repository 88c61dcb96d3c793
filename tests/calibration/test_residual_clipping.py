"""Clipping what is added to a residual by the error behind the LayerNorm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qdqbert.calibration.residual_clipping import (
    CANDIDATES,
    ResidualErrorObserver,
    clip_residual_ranges,
)
from qdqbert.quantization.spec import Range, Site

LOCAL = "layer.0.output.add_local_input_quantizer"
RESIDUAL = "layer.0.output.add_residual_input_quantizer"
WIDE = 190.0


def site(name: str) -> Site:
    return Site(name=name, kind="activation", sequence_axes=(1,))


def states(seed: int, *, batch: int = 2, seq: int = 16, hidden: int = 48) -> torch.Tensor:
    return torch.randn(batch, seq, hidden, generator=torch.Generator().manual_seed(seed))


def with_wide_channel(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x[:, 0, 7] = value
    return x


def errors_of(local, residual, *, mask=None, bits: int = 8) -> torch.Tensor:
    collector = ResidualErrorObserver([LOCAL, RESIDUAL], bits=bits)
    collector.start_batch(torch.ones(local.shape[:2]) if mask is None else mask)
    collector.observe(site(LOCAL), local)
    collector.observe(site(RESIDUAL), residual)
    return collector.errors[LOCAL]


def own_range(x: torch.Tensor) -> Range:
    return Range(amax=float(x.abs().max()), low=float(x.min()), high=float(x.max()))


@pytest.mark.parametrize("bits", [8, 4])
def test_errors_are_those_of_the_formula(bits) -> None:
    local, residual = with_wide_channel(states(0), WIDE), with_wide_channel(states(1), 20.0)
    qmax = 2 ** (bits - 1) - 1

    def normalized(x):
        centered = x - x.mean(axis=-1, keepdims=True)
        return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5)

    x, r = local.double().numpy(), residual.double().numpy()
    expected = []
    for amax in CANDIDATES.double().numpy():
        made = np.clip(np.rint(x / (amax / qmax)), -qmax - 1, qmax) * (amax / qmax)
        expected.append(((normalized(made + r) - normalized(x + r)) ** 2).sum())
    np.testing.assert_allclose(errors_of(local, residual, bits=bits).numpy(), expected, rtol=2e-2)


def test_a_channel_that_layer_norm_flattens_does_not_set_the_range() -> None:
    local, residual = with_wide_channel(states(0), WIDE), with_wide_channel(states(1), 28.0)
    own = own_range(local)
    clipped = clip_residual_ranges({LOCAL: own}, {LOCAL: errors_of(local, residual)})[LOCAL]
    assert own.amax == WIDE
    assert 2 < clipped.amax < WIDE / 5
    assert (clipped.low, clipped.high) == (own.low, clipped.amax)


def test_a_range_within_the_best_candidate_stays() -> None:
    own = Range(amax=0.5, low=-0.5, high=0.25)
    errors = torch.ones(len(CANDIDATES))
    errors[-1] = 0.0
    assert clip_residual_ranges({LOCAL: own}, {LOCAL: errors}) == {LOCAL: own}


def test_padding_is_left_out() -> None:
    local, residual, mask = states(0), states(1), torch.ones(2, 16)
    mask[:, 12:] = 0
    dirty = local.clone()
    dirty[:, 12:] = 1e6
    assert torch.equal(errors_of(dirty, residual, mask=mask), errors_of(local, residual, mask=mask))


def test_errors_of_batches_add_up() -> None:
    collector = ResidualErrorObserver([LOCAL])
    expected = torch.zeros(len(CANDIDATES), dtype=torch.float64)
    for seed in range(3):
        local, residual = states(seed), states(seed + 10)
        collector.start_batch(torch.ones(2, 16))
        collector.observe(site(LOCAL), local)
        collector.observe(site(RESIDUAL), residual)
        expected += errors_of(local, residual)
    torch.testing.assert_close(collector.errors[LOCAL], expected)


def test_long_texts_are_sampled_from_end_to_end() -> None:
    local, residual = states(0, batch=1, seq=1024), states(1, batch=1, seq=1024)
    late = local.clone()
    late[:, 1016] = 50.0
    assert not torch.equal(errors_of(late, residual), errors_of(local, residual))


def test_inputs_of_different_adds_are_not_paired() -> None:
    collector = ResidualErrorObserver([LOCAL])
    collector.start_batch(torch.ones(2, 16))
    collector.observe(site(LOCAL), states(0))
    collector.observe(site("layer.1.output.add_residual_input_quantizer"), states(1))
    assert not collector.errors[LOCAL].any()


def test_only_so_many_tokens_of_an_add_are_looked_at() -> None:
    # 40 batches of 128: what calibration of 300 texts has. More would cost and tell nothing.
    collector = ResidualErrorObserver([LOCAL])
    errors = []
    for index in range(60):
        collector.start_batch(torch.ones(1, 128))
        collector.observe(site(LOCAL), states(index, batch=1, seq=128))
        collector.observe(site(RESIDUAL), states(index + 100, batch=1, seq=128))
        errors.append(collector.errors[LOCAL].clone())
    assert torch.equal(errors[-1], errors[39])
    assert not torch.equal(errors[39], errors[38])
