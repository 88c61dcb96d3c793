"""Codes and scales of numpy are those of torch, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.encoders.affine import parameters_of, quantize_weight, rounding_shift
from qdqbert.quantization.numerics import affine
from qdqbert.quantization.recipes import AFFINE, PROBABILITIES, SYMMETRIC, WEIGHT
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT, Range, TensorSpec

# Subnormal numbers are zero in some modes of a CPU, which torch may be in.
FLOATS = st.floats(-3, 3, width=32, allow_subnormal=False)
MATRICES = hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=FLOATS)
SPECS = st.builds(
    TensorSpec,
    bits=st.integers(2, 8),
    narrow=st.booleans(),
    axis=st.sampled_from((None, 0)),
    adjacent_sum_limit=st.sampled_from((None, SAFE_ADJACENT_SUM_LIMIT)),
)


@given(
    st.floats(-100, 0, allow_subnormal=False),
    st.floats(0, 100, allow_subnormal=False),
    st.sampled_from((AFFINE, SYMMETRIC, PROBABILITIES, WEIGHT, TensorSpec(symmetric=False))),
)
def test_scale_and_zero_point_of_a_range(low: float, high: float, spec: TensorSpec) -> None:
    chosen = Range(amax=max(-low, high), low=low, high=high)
    expected = affine.parameters_of(chosen, spec)
    found = parameters_of(chosen, spec)
    assert found == (expected.scale.item(), expected.zero_point.item())


@pytest.mark.parametrize("spec", [SYMMETRIC, AFFINE, PROBABILITIES], ids=str)
@pytest.mark.parametrize("width", [0.0, 1e-42, 1e-30, 2.0**-24])
def test_a_range_of_zero_makes_all_values_zero_as_in_pytorch(width: float, spec: Any) -> None:
    x = torch.tensor([-3.0, -0.2, 0.0, 0.7, 200.0])
    chosen = Range(amax=width, low=-width / 2, high=width / 2)
    made = Quantizer(spec)
    made.set_range(chosen)
    assert made(x).tolist() == [0] * 5
    assert affine.fake_quantize(x, affine.parameters_of(chosen, spec), spec).tolist() == [0] * 5
    step, zero_point = parameters_of(chosen, spec)
    codes = (np.rint(x.numpy() / step) + zero_point).clip(spec.qmin, spec.qmax)
    assert ((codes - zero_point) * step).tolist() == [0] * 5


@given(st.data(), MATRICES, SPECS)
def test_codes_and_scales_of_a_weight(data: Any, weight: Any, spec: TensorSpec) -> None:
    sizes = st.sampled_from([(), (len(weight),)])
    amax = data.draw(
        st.none() | sizes.flatmap(lambda n: hnp.arrays(np.float32, n, elements=st.just(1.5)))
    )
    rounds_up = data.draw(st.none() | hnp.arrays(np.bool_, weight.shape))
    expected, parameters = affine.quantize_weight(
        torch.from_numpy(weight),
        spec,
        None if amax is None else torch.from_numpy(amax),
        None if rounds_up is None else torch.from_numpy(rounds_up),
    )
    codes, scale = quantize_weight(weight, spec, amax, rounds_up)
    np.testing.assert_array_equal(scale, parameters.scale.numpy())
    np.testing.assert_array_equal(codes, expected.numpy())


@given(MATRICES)
def test_codes_and_scales_of_a_table(rows: Any) -> None:
    spec = TensorSpec(narrow=True, axis=1)
    expected, parameters = affine.quantize_weight(torch.from_numpy(rows), spec)
    codes, scale = quantize_weight(rows, spec)
    np.testing.assert_array_equal(scale, parameters.scale.numpy())
    np.testing.assert_array_equal(codes, expected.numpy())


def test_many_rows_become_codes_block_by_block() -> None:
    rows = np.random.default_rng(0).normal(size=(9000, 3)).astype(np.float32)
    codes, scale = quantize_weight(rows, TensorSpec(narrow=True, axis=1))
    np.testing.assert_array_equal(codes, np.rint(rows / scale))


@given(MATRICES)
def test_shift_of_a_bias(weight: Any) -> None:
    mean = np.linspace(-1, 1, weight.shape[1], dtype=np.float32)
    codes, scale = quantize_weight(weight, TensorSpec(narrow=True))
    rounded = codes * scale
    tensors = (torch.from_numpy(each) for each in (weight, rounded, mean))
    expected = affine.rounding_shift(*tensors).numpy()
    # Both sum in float64, in an order of their own.
    np.testing.assert_allclose(rounding_shift(weight, rounded, mean), expected, 2e-7, 1e-14)


@given(MATRICES, st.sampled_from((None, 0)), st.none() | st.just(np.array(1.5, np.float32)))
def test_a_close_fit_obeys_the_limit(weight: Any, axis: int | None, amax: Any) -> None:
    spec = TensorSpec(narrow=True, axis=axis, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)
    codes, scale = quantize_weight(weight, spec, amax, fits_closely=True)
    assert scale.shape == (() if axis is None else (len(weight),))
    pairs = np.pad(codes, [(0, 0), (0, weight.shape[1] % 2)]).astype(int)
    assert np.abs(pairs[:, ::2] + pairs[:, 1::2]).max() <= SAFE_ADJACENT_SUM_LIMIT
    steps = scale if axis is None else scale[:, None]
    kept = weight if amax is None else weight.clip(-amax, amax)
    assert (np.abs(codes * steps - kept) <= steps * 0.5001).all()
    # It never takes a larger scale than weights need that are rounded to either side.
    assert (scale <= quantize_weight(weight, spec, amax)[1] * np.float32(1.003)).all()


def test_a_close_fit_without_a_limit_is_the_usual_one() -> None:
    weight = np.array([[1.0, 1.0, -0.5]], np.float32)
    codes, scale = quantize_weight(weight, WEIGHT, fits_closely=True)
    assert scale == pytest.approx(1 / 127)
    np.testing.assert_array_equal(codes, [[127, 127, -64]])
