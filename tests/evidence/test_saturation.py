from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.evidence.saturation import SaturationCheck, overflow_percent
from qdqbert.quantization.numerics.weight_rounding import pack
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT, Range, Site, TensorSpec

INPUT, WEIGHT = "layer.0.dense._input_quantizer", "layer.0.dense._weight_quantizer"
UNSIGNED = TensorSpec(bits=8, signed=False, symmetric=False)
NARROW = TensorSpec(bits=8, narrow=True, axis=0)


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 70), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_share_equals_that_of_sums_by_numpy(tokens, outputs, width, seed) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(0, 256, (tokens, width))
    w = random.integers(-127, 128, (outputs, width))
    beyond = total = 0
    for i in range(0, width - 1, 2):
        sums = x[:, None, i] * w[None, :, i] + x[:, None, i + 1] * w[None, :, i + 1]
        beyond += int(((sums > 32767) | (sums < -32768)).sum())
        total += sums.size
    expected = 100 * beyond / total if total else 0.0
    assert overflow_percent(torch.tensor(x), torch.tensor(w)) == pytest.approx(expected)


def checked(
    weight_spec: TensorSpec,
    *,
    mask: torch.Tensor | None = None,
    amax: float | None = None,
    rounds_up: torch.Tensor | None = None,
) -> SaturationCheck:
    # Adjacent codes of the same sign and full magnitude: the worst case of a trained weight.
    weight = torch.ones(4, 6)
    x = torch.full((2, 3, 6), 9.0)
    check = SaturationCheck(
        {INPUT: UNSIGNED, WEIGHT: weight_spec},
        CalibrationResult(
            ranges={INPUT: Range(amax=9.0, low=0.0, high=9.0)},
            weight_amax={} if amax is None else {WEIGHT: torch.tensor(amax)},
            roundings={} if rounds_up is None else {(WEIGHT, weight_spec): pack(rounds_up)},
        ),
        {INPUT: weight},
    )
    check.start_batch(torch.ones(2, 3) if mask is None else mask)
    check.observe(Site(name=INPUT, kind="activation", sequence_axes=(1,)), x)
    return check


def test_linear_layers_whose_sums_overflow_are_named() -> None:
    (found,) = checked(NARROW).overflows
    assert found.site == INPUT
    assert found.percent == 100


def test_weights_with_an_adjacent_sum_limit_never_overflow() -> None:
    spec = TensorSpec(bits=8, narrow=True, axis=0, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)
    assert not checked(spec).overflows


def test_weights_with_a_range_of_their_own_are_checked_as_they_are_in_the_graph() -> None:
    # A range of twice the weights halves their codes, and 2 * 255 * 64 < 2^15.
    assert not checked(NARROW, amax=2.0).overflows


def test_weights_are_rounded_as_in_the_graph() -> None:
    # Weights are 64.6 steps: 2 * 255 * 65 overflows, and 2 * 255 * 64 does not.
    amax = 127 / 64.6
    assert checked(NARROW, amax=amax).overflows
    assert not checked(NARROW, amax=amax, rounds_up=torch.zeros(4, 6).bool()).overflows


def test_padding_and_float_layers_are_left_out() -> None:
    assert not checked(NARROW, mask=torch.zeros(2, 3)).overflows
    check = SaturationCheck(
        {INPUT: None, WEIGHT: None}, CalibrationResult(), {INPUT: torch.ones(4, 6)}
    )
    check.start_batch(torch.ones(2, 3))
    check.observe(Site(name=INPUT, kind="activation", sequence_axes=(1,)), torch.ones(2, 3, 6))
    assert not check.overflows
