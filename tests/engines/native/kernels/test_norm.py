"""LayerNorm and codes of rows, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, check_codes, codes_record, few, norm_record, unsigned
from native_references import codes, dynamic_codes, layer_norm, spread
from qdqbert.engines.native.kernels.norm import NORMED_ROWS
from qdqbert.engines.native.memory import padded
from qdqbert.quantization.hadamard import Hadamard


def normalize(kernels, x, weight, bias, epsilon, *, subtracts_mean=True):
    """Return rows from the kernel, which have padding up to a multiple of 64 channels."""
    rows, width = x.shape
    wide = np.zeros((rows + 1, padded(width)), np.float32)
    wide[:rows, :width] = x
    wide[rows] = 7
    arrays = [np.pad(each, (0, padded(width) - width)) for each in (weight, bias)]
    record = norm_record(*arrays, epsilon, width, subtracts_mean=subtracts_mean)
    kernels("layer_norm", record, wide[:rows], bytes_of_row(wide), rows)
    assert not wide[:rows, width:].any()
    assert (wide[rows] == 7).all()
    return wide[:rows, :width]


@few
@given(rows=st.integers(1, 5), width=st.integers(2, 200), seed=st.integers(0, 2**32))
def test_rms_norm_does_not_subtract_the_mean(kernels, rows, width, seed) -> None:
    rng = np.random.default_rng(seed)
    x = (1 + rng.standard_normal((rows, width))).astype(np.float32)
    weight, bias = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    found = normalize(kernels, x, weight, bias, 1e-5, subtracts_mean=False)
    expected = layer_norm(x, weight, bias, 1e-5, subtracts_mean=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@few
@given(
    rows=st.integers(1, 5),
    width=st.integers(2, 200),
    mean=st.sampled_from((0.0, 3.0, 1000.0)),
    scale=st.sampled_from((1e-3, 1.0, 50.0)),
    seed=st.integers(0, 2**32),
)
def test_layer_norm_computes_what_numpy_does(kernels, rows, width, mean, scale, seed) -> None:
    rng = np.random.default_rng(seed)
    x = (mean + scale * rng.standard_normal((rows, width))).astype(np.float32)
    weight, bias = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    found = normalize(kernels, x, weight, bias, 1e-12)
    # x and its mean are rounded to float32, and the deviation may be small next to them.
    deviation = x.astype(np.float64).std(axis=1).min()
    assume(deviation > 0)
    tolerance = 1e-5 + 4e-7 * np.abs(x).max() / deviation * np.abs(weight).max()
    np.testing.assert_allclose(found, layer_norm(x, weight, bias, 1e-12), atol=tolerance, rtol=1e-5)


def test_equal_channels_become_the_bias(kernels) -> None:
    bias = np.arange(10, dtype=np.float32)
    found = normalize(kernels, np.full((1, 10), 4, np.float32), bias + 1, bias, 1e-5)
    np.testing.assert_array_equal(found[0], bias)


@few
@given(
    rows=st.integers(1, 5),
    channels=st.integers(1, 4).map(lambda each: 64 * each),
    zero_point=st.integers(0, 255),
    scale=st.sampled_from((0.1, 30.0, 1e6)),
    seed=st.integers(0, 2**32),
)
def test_rows_become_codes(kernels, rows, channels, zero_point, scale, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, channels + 16)).astype(np.float32)
    multiplier = (scale * rng.uniform(0.5, 2, channels)).astype(np.float32)
    out = np.full((rows + 1, channels + 5), 77, np.uint8)
    kernels(
        "quantize_rows",
        codes_record(multiplier, zero_point),
        x[:, :channels],
        bytes_of_row(x),
        channels,
        rows,
        out[:rows, :channels],
        bytes_of_row(out),
        0,
    )
    values = x[:, :channels].astype(np.float64) * multiplier
    check_codes(out[:rows, :channels], values, zero_point)
    assert (out[rows:] == 77).all()
    assert (out[:, channels:] == 77).all()


@pytest.mark.parametrize("zero_point", [0, 128])
def test_values_in_the_middle_are_rounded_to_even_codes(kernels, zero_point) -> None:
    x = np.arange(-8, 8, 0.25, dtype=np.float32)[None]
    out = np.zeros((1, 64), np.uint8)
    ones = np.ones(64, np.float32)
    kernels("quantize_rows", codes_record(ones, zero_point), x, x.nbytes, 64, 1, out, 64, 0)
    np.testing.assert_array_equal(out, codes(x, ones, zero_point))
    x[0, :4] = np.inf, -np.inf, np.nan, 1e30
    kernels("quantize_rows", codes_record(ones, zero_point), x, x.nbytes, 64, 1, out, 64, 0)
    assert out[0, :4].tolist() == [255, 0, 0, 255]


@few
@given(
    rows=st.integers(1, 5),
    channels=st.integers(1, 4).map(lambda each: 64 * each),
    mean=st.sampled_from((0.0, 1.0, 5.0, -5.0)),
    size=st.sampled_from((1e-3, 1.0, 1e4)),
    seed=st.integers(0, 2**32),
)
def test_rows_get_scales_of_their_own(dynamic_kernels, rows, channels, mean, size, seed) -> None:
    rng = np.random.default_rng(seed)
    x = (size * (mean + rng.standard_normal((rows, channels)))).astype(np.float32)
    multiplier = rng.uniform(0.5, 2, channels).astype(np.float32)
    out = np.full((rows + 1, channels), 77, np.uint8)
    found = np.full(rows + 1, 9, np.float32)
    source, target = (x, bytes_of_row(x), channels), (out[:rows], channels, found[:rows])
    dynamic_kernels("quantize_rows", codes_record(multiplier), *source, rows, *target)
    _, scales = dynamic_codes(x, multiplier)
    np.testing.assert_allclose(found[:rows], scales, rtol=1e-6)
    values = x.astype(np.float64) * multiplier / scales[:, None]
    for row in range(rows):
        check_codes(unsigned(dynamic_kernels, out[row]), values[row], 128)
    assert (out[rows] == 77).all()
    assert found[rows] == 9


def test_a_row_of_zeros_has_the_code_of_zero(dynamic_kernels) -> None:
    out, scale = np.full((1, 64), 7, np.uint8), np.zeros(1, np.float32)
    record = codes_record(np.ones(64, np.float32))
    x = np.zeros((1, 64), np.float32)
    dynamic_kernels("quantize_rows", record, x, 256, 64, 1, out, 64, scale)
    assert (unsigned(dynamic_kernels, out) == 128).all()
    assert 0 < scale[0] < 1e-30


@pytest.mark.parametrize("width", [64, 50])
@pytest.mark.parametrize("is_normed", [True, False])
def test_rows_are_normalized_before_they_become_codes(modern_kernels, width, is_normed) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = np.zeros((5, 64)), np.zeros(64), np.zeros(64)
    x[:, :width], weight[:width] = 3 * rng.standard_normal((5, width)), rng.uniform(0.5, 2, width)
    bias[:width] = rng.standard_normal(width)
    x, weight, bias = (each.astype(np.float32) for each in (x, weight, bias))
    multiplier = rng.uniform(0.5, 2, 64).astype(np.float32)
    before = x.copy()
    out, found = np.zeros((5, 64), np.uint8), np.zeros(5, np.float32)
    norm = norm_record(weight, bias, 1e-5, width)
    modern_kernels(
        "quantize_normed",
        codes_record(multiplier),
        x,
        x.strides[0],
        64,
        5,
        out,
        64,
        found,
        0,
        norm if is_normed else 0,
        np.zeros((NORMED_ROWS, 64), np.float32),
    )
    np.testing.assert_array_equal(x, before)
    values = x
    if is_normed:
        values = np.zeros_like(x)
        values[:, :width] = layer_norm(x[:, :width], weight[:width], bias[:width], 1e-5)
    expected, scales = dynamic_codes(values, multiplier)
    np.testing.assert_allclose(found, scales, rtol=1e-5)
    assert np.abs(unsigned(modern_kernels, out).astype(int) - expected).max() <= 1


def in_one_pass_and_in_two(kernels, rows, width, seed) -> list[tuple[bytes, ...]]:
    """Return states, codes and parameters of `layer_norm_codes`, and of the kernels it is made of.

    The other kernels get one row at a time.
    """
    rng = np.random.default_rng(seed)
    channels = padded(width)
    x = np.zeros((rows, channels), np.float32)
    x[:, :width] = 3 * rng.standard_normal((rows, width))
    weight, bias = np.zeros((2, channels), np.float32)
    weight[:width], bias[:width] = rng.uniform(0.5, 2, width), rng.standard_normal(width)
    norm = norm_record(weight, bias, 1e-5, width)
    multiplier = rng.uniform(5, 20, channels).astype(np.float32)
    record = codes_record(multiplier, 120)
    found = []
    for in_one_pass in (True, False):
        states, codes, scales = x.copy(), np.zeros(x.shape, np.uint8), np.zeros(rows, np.float32)
        if in_one_pass:
            target = (codes, channels, scales, 0, norm)
            source = (states, bytes_of_row(states), channels, rows)
            kernels("layer_norm_codes", record, *source, *target)
        else:
            for row in range(rows):
                some = slice(row, row + 1)
                kernels("layer_norm", norm, states[some], channels * 4, 1)
                source = (states[some], channels * 4, channels, 1)
                kernels("quantize_rows", record, *source, codes[some], channels, scales[some])
        found.append(tuple(each.tobytes() for each in (states, codes, scales)))
    return found


@few
@given(rows=st.integers(1, 9), width=st.integers(2, 200), seed=st.integers(0, 2**32))
def test_rows_that_are_normalized_together_have_the_same_bits(
    kernels, dynamic_kernels, rows, width, seed
) -> None:
    for each in (kernels, dynamic_kernels):
        one_pass, two_passes = in_one_pass_and_in_two(each, rows, width, seed)
        assert one_pass == two_passes


@pytest.mark.parametrize(
    ("name", "matrix", "channels"),
    [
        ("spread_states", Hadamard(members=8, block=8), 384),
        ("spread_states", Hadamard(members=8, block=8), 640),
        ("spread_inner", Hadamard(block=16), 320),
    ],
)
def test_channels_are_spread_before_they_become_codes(
    spread_kernels, name, matrix, channels
) -> None:
    rng = np.random.default_rng(0)
    rows, width = 7, padded(channels)
    x = np.zeros((rows, width), np.float32)
    x[:, :channels] = rng.standard_normal((rows, channels)) * rng.uniform(0.1, 10, (rows, 1))
    multiplier = np.zeros(width, np.float32)
    multiplier[:channels] = rng.uniform(0.5, 2, channels)
    out, scales = np.zeros((rows, width), np.uint8), np.zeros(rows, np.float32)
    before, step = x.copy(), 4 * channels // matrix.members
    buffer = np.full((NORMED_ROWS, width), np.nan, np.float32)
    record = codes_record(multiplier, step=step)
    spread_kernels(name, record, x, bytes_of_row(x), width, rows, out, width, scales, buffer)
    np.testing.assert_array_equal(x, before)
    values = spread(x[:, :channels].astype(np.float64) * multiplier[:channels], matrix)
    expected = np.abs(values).max(axis=1) / 127
    np.testing.assert_allclose(scales, expected, rtol=1e-5)
    for row in range(rows):
        found = unsigned(spread_kernels, out[row, :channels])
        check_codes(found, values[row] / expected[row], 128)


@few
@given(rows=st.integers(1, 9), seed=st.integers(0, 2**32))
def test_normalized_rows_are_spread_and_stay_as_they_are(spread_kernels, rows, seed) -> None:
    rng = np.random.default_rng(seed)
    x = (3 * rng.standard_normal((rows, 384))).astype(np.float32)
    weight, bias = rng.uniform(0.5, 2, (2, 384)).astype(np.float32)
    multiplier = np.ones(384, np.float32)
    norm, record = norm_record(weight, bias, 1e-5, 384), codes_record(multiplier, step=192)
    buffer = np.zeros((NORMED_ROWS, 384), np.float32)
    found = []
    for in_one_pass in (True, False):
        states, codes, scales = x.copy(), np.zeros(x.shape, np.uint8), np.zeros(rows, np.float32)
        target = (states, bytes_of_row(states), 384, rows, codes, 384, scales, buffer)
        if in_one_pass:
            spread_kernels("layer_norm_codes", record, *target, norm)
        else:
            spread_kernels("layer_norm", norm, states, bytes_of_row(states), rows)
            spread_kernels("spread_states", record, *target)
        found.append(tuple(each.tobytes() for each in (states, codes, scales)))
    assert found[0] == found[1]
