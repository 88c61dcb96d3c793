from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qdqbert.quantization.numerics.affine import quantize_weight
from qdqbert.quantization.numerics.weight_rounding import (
    UnroundedWeight,
    choose_rounding,
    pack,
    rounding_of,
)
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT, TensorSpec, input_site_of

NAME = "layer.0.dense._weight_quantizer"
WEIGHT = TensorSpec(narrow=True, axis=0)
PAIRED = dataclasses.replace(WEIGHT, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)
SPECS = st.integers(2, 8).flatmap(
    lambda bits: st.builds(
        TensorSpec,
        bits=st.just(bits),
        narrow=st.booleans(),
        axis=st.sampled_from([0, None]),
        adjacent_sum_limit=st.none() | st.integers(max(2, 2 ** (bits - 1) - 1), 2**bits),
    )
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def correlated(size: int, seed: int = 0) -> torch.Tensor:
    """Return second moments whose eigenvalues fall as `1 / k`."""
    directions, _ = torch.linalg.qr(normal(size, size, seed=seed).double())
    return directions / torch.arange(1, size + 1) @ directions.T


def rounded(weight, spec, moments, amax=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes, and the scale of each row."""
    each = UnroundedWeight(weight=weight, spec=spec, amax=amax)
    [rounds_up] = choose_rounding([each], moments)
    codes, parameters = quantize_weight(weight, spec, amax, rounds_up)
    return codes, parameters.scale.expand(len(weight))


def output_errors(values: NDArray[np.float64], codes, moments) -> NDArray[np.float64]:
    difference = values - codes.numpy().astype(np.float64)
    return np.einsum("oi,ij,oj->o", difference, moments.numpy(), difference)


def gptq(values: NDArray[np.float64], moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the codes of GPTQ's algorithm 1, each limited to the two next to its value."""
    size = len(moments)
    damped = moments + 0.01 * np.diag(moments).mean() * np.eye(size)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    moved, codes = values.copy(), np.zeros_like(values)
    for i in range(size):
        below = np.floor(values[:, i])
        codes[:, i] = np.clip(np.rint(moved[:, i]), below, below + 1)
        error = (moved[:, i] - codes[:, i]) / factor[i, i]
        moved[:, i:] -= error[:, None] * factor[i, i:]
    return codes


@pytest.mark.parametrize("size", [5, 200], ids=["one-block", "blocks"])
def test_codes_are_those_of_gptq(size) -> None:
    weight, moments = normal(40, size), correlated(size)
    codes, scale = rounded(weight, WEIGHT, moments)
    values = (weight / scale[:, None]).double().numpy()
    expected = gptq(values, moments.numpy())
    nearest = np.rint(values)
    # Rows that GPTQ makes worse stay as they are.
    as_numpy = torch.from_numpy
    is_worse = output_errors(values, as_numpy(expected), moments) > output_errors(
        values, as_numpy(nearest), moments
    )
    expected[is_worse] = nearest[is_worse]
    assert (expected != nearest).any()
    np.testing.assert_array_equal(codes.numpy(), expected)


def test_correlated_inputs_gain_most_of_what_is_possible() -> None:
    weight, moments = normal(64, 96), correlated(96)
    codes, scale = rounded(weight, WEIGHT, moments)
    nearest, _ = quantize_weight(weight, WEIGHT)
    values = (weight / scale[:, None]).double().numpy()
    ratio = (
        output_errors(values, codes, moments).sum() / output_errors(values, nearest, moments).sum()
    )
    # The error is sum(d) / 12 for each row instead of trace(H) / 12, if no code is limited.
    lowest = np.exp(np.linalg.slogdet(moments.numpy())[1] / 96) / np.trace(moments.numpy()) * 96
    assert lowest < ratio < 0.6


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 9)),
        elements=st.sampled_from([0.0, 1.0, -1.0, 63.5, 64.0, 0.25])
        | st.floats(-(2.0**60), 2.0**60, width=32),
    ),
    st.integers(0, 5),
    st.data(),
    SPECS,
)
def test_codes_obey_the_spec_and_lose_nothing(weight, seed, data, spec) -> None:
    shape = (len(weight),) if spec.axis == 0 and data.draw(st.booleans()) else ()
    ranges = st.none() | hnp.arrays(
        np.float32, shape, elements=st.sampled_from([0.0, 1.0, 63.5]) | st.floats(0, 9, width=32)
    )
    amax = data.draw(ranges)
    amax = None if amax is None else torch.from_numpy(np.asarray(amax))
    weight = torch.from_numpy(weight)
    inputs = normal(2, weight.shape[1], seed=seed).double()
    moments = inputs.T @ inputs
    codes, scale = rounded(weight, spec, moments, amax)
    nearest, _ = quantize_weight(weight, spec, amax)

    assert codes.min() >= spec.qmin
    assert codes.max() <= spec.qmax
    assert (codes - nearest).abs().max() <= 1
    if spec.adjacent_sum_limit is not None:
        paired = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2)).view(len(codes), -1, 2)
        assert paired.sum(dim=2).abs().max() <= spec.adjacent_sum_limit
    limit = float("inf") if amax is None else amax.expand(len(weight))[:, None].numpy()
    values = np.clip(weight.numpy(), -limit, limit).astype(np.float32) / scale[:, None].numpy()
    before, after = (
        output_errors(values.astype(np.float64), each, moments) for each in (nearest, codes)
    )
    # Both are sums in float64, in another order.
    assert (after <= before * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize(
    "moments",
    [torch.eye(33), torch.diag(torch.arange(33.0)), torch.zeros(33, 33)],
    ids=["identity", "diagonal", "constant-input"],
)
@pytest.mark.parametrize("spec", [WEIGHT, PAIRED], ids=["free", "paired"])
def test_uncorrelated_inputs_give_the_nearest_codes(moments, spec) -> None:
    weight = normal(20, 33)
    # Halfway between two codes.
    weight[:, 7] = weight.abs().amax(dim=1) / 254
    codes, _ = rounded(weight, spec, moments)
    assert torch.equal(codes, quantize_weight(weight, spec)[0])


def test_weights_that_read_one_input_do_not_affect_each_other() -> None:
    moments = correlated(70)
    given = [
        UnroundedWeight(weight=normal(6, 70, seed=1), spec=PAIRED),
        UnroundedWeight(weight=normal(9, 70, seed=2), spec=dataclasses.replace(WEIGHT, axis=None)),
        UnroundedWeight(weight=normal(3, 70, seed=3), spec=PAIRED, amax=torch.tensor(1.5)),
    ]
    together = choose_rounding(given, moments)
    for each, found in zip(given, together, strict=True):
        [alone] = choose_rounding([each], moments)
        assert found.shape == each.weight.shape
        assert torch.equal(found, alone)


@pytest.mark.parametrize("width", [1, 8, 13])
def test_packed_bits_come_back(width) -> None:
    rounds_up = normal(5, width) > 0
    packed = pack(rounds_up)
    assert packed.dtype == torch.uint8
    assert packed.shape == (5, -(-width // 8))
    specs = {NAME: PAIRED, input_site_of(NAME): TensorSpec()}
    found = rounding_of({(NAME, PAIRED): packed}, NAME, width, specs)
    assert found is not None
    assert torch.equal(found, rounds_up)


@pytest.mark.parametrize(
    ("weight", "inputs"),
    [(None, TensorSpec()), (WEIGHT, TensorSpec()), (PAIRED, None)],
    ids=["float-weight", "other-spec", "float-input"],
)
def test_weights_that_no_rounding_was_chosen_for_have_none(weight, inputs) -> None:
    roundings = {(NAME, PAIRED): torch.zeros(2, 1, dtype=torch.uint8)}
    specs = {NAME: weight, input_site_of(NAME): inputs}
    assert rounding_of(roundings, NAME, 3, specs) is None
