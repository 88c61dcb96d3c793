"""Linear layers in int8 and in float, with all that is done to results, against numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import ACTIVATIONS_OF_NUMPY as ACTIVATIONS
from native_kernels import (
    SAFE_CODE,
    bytes_of_row,
    check_codes,
    codes_record,
    few,
    round_trip_record,
    unsigned,
)
from native_references import dot, round_trip
from qdqbert.engines.native.kernels.dot import PANEL, first_sums, pack
from qdqbert.engines.native.kernels.forward import SPARE_ROWS
from qdqbert.engines.native.kernels.product import pack_floats
from qdqbert.engines.native.records import LINEAR

# The error of activation functions for small inputs; see `test_functions`.
_TOLERANCE = 3e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A linear layer, its input and its result in float64."""

    codes: Any
    record: Any
    values: Any
    # What the record has the addresses of.
    arrays: tuple[Any, ...]


def make_case(kernels, rows: int, panels: int, depth: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    columns = panels * PANEL
    # Kernels for AMX read further rows, and ignore them.
    codes = rng.integers(0, 256, (rows + SPARE_ROWS, depth + 64)).astype(np.uint8)
    weights = rng.integers(-SAFE_CODE, SAFE_CODE + 1, (columns, depth)).astype(np.int8)
    start = rng.integers(-100_000, 100_000, columns).astype(np.int32)
    if kernels.isa.tiles.is_signed:
        # Dynamic codes are symmetric: no other offset is needed.
        start = -128 * weights.sum(axis=1, dtype=np.int32)
    factor = (rng.uniform(0.5, 2, columns) / (4000 * np.sqrt(depth))).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    packed = pack(weights, depth)
    first = first_sums(packed, start, is_signed=kernels.isa.is_signed)
    record = LINEAR.make(
        weights=packed,
        panel=bytes_of_row(packed),
        panels=panels,
        steps=depth // 4,
        first_sums=first,
        factor=factor,
        bias=bias,
    )
    sums = dot(codes[:rows, :depth], weights, start).astype(np.float64)
    return Case(
        unsigned(kernels, codes), record, sums * factor + bias, (packed, start, factor, bias, first)
    )


def float_case(rows: int, panels: int, depth: int, seed: int) -> Case:
    """Return a case in float, whose rows of float32 are seen as bytes."""
    rng = np.random.default_rng(seed)
    x, weights, bias = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((rows, depth + 16), (panels * PANEL, depth), panels * PANEL)
    )
    packed = pack_floats(weights / np.float32(np.sqrt(depth)), depth)
    record = LINEAR.make(
        weights=packed, panel=bytes_of_row(packed), panels=panels, steps=depth, first_sums=bias
    )
    values = x[:, :depth].astype(np.float64) @ weights.T / np.sqrt(depth) + bias
    return Case(x.view(np.uint8), record, values, (packed, bias))


def run(
    kernels,
    name: str,
    case: Case,
    out: Any,
    rows: int,
    extra: Any = 0,
    *,
    row_scales: Any = 0,
    first_row: int = 0,
    first_panel: int = 0,
) -> None:
    panels = len(case.arrays[0]) - first_panel
    end = first_row + rows + kernels.isa.tiles.spare_rows
    width = case.arrays[0].shape[1] * 4
    columns = panels * PANEL
    kernels.with_tiles(
        name,
        case.record,
        first_panel,
        panels,
        case.codes[first_row:end, :width],
        bytes_of_row(case.codes),
        rows,
        out[:rows, :columns],
        bytes_of_row(out),
        row_scales,
        extra,
        # The weights that are read next.
        case.arrays[0],
    )


sizes = given(
    rows=st.integers(1, 70),
    panels=st.integers(1, 7),
    depth=st.integers(1, 4).map(lambda each: 64 * each),
    seed=st.integers(0, 2**32),
)


@few
@sizes
def test_values_are_stored(kernels, rows, panels, depth, seed) -> None:
    case = make_case(kernels, rows, panels, depth, seed)
    out = np.full((rows + 1, panels * PANEL + 5), np.nan, np.float32)
    run(kernels, "linear_float", case, out, rows)
    np.testing.assert_allclose(out[:rows, :-5], case.values, rtol=1e-6, atol=1e-6)
    assert np.isnan(out[rows:]).all()
    assert np.isnan(out[:, -5:]).all()


@few
@sizes
def test_values_are_added_to_a_residual(kernels, rows, panels, depth, seed) -> None:
    case = make_case(kernels, rows, panels, depth, seed)
    before = np.random.default_rng(seed).standard_normal((rows + 1, panels * PANEL))
    out = before.astype(np.float32)
    expected = out[:rows] + case.values
    run(kernels, "linear_add", case, out, rows)
    np.testing.assert_allclose(out[:rows], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(out[rows:], before[rows:].astype(np.float32))


@few
@given(
    name=st.sampled_from(sorted(ACTIVATIONS)),
    zero_point=st.integers(0, 255),
    rows=st.integers(1, 70),
    panels=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
def test_values_become_the_codes_of_the_next_layer(
    kernels, name, zero_point, rows, panels, seed
) -> None:
    case = make_case(kernels, rows, panels, 128, seed)
    columns = panels * PANEL
    multiplier = np.random.default_rng(seed).uniform(5, 100, columns).astype(np.float32)
    out = np.full((rows + 1, columns + 5), 77, np.uint8)
    codes = codes_record(multiplier, zero_point)
    run(kernels, f"linear_codes_{name}", case, out, rows, codes)
    check_codes(
        out[:rows, :-5], ACTIVATIONS[name](case.values) * multiplier, zero_point, 100 * _TOLERANCE
    )
    assert (out[rows:] == 77).all()
    assert (out[:, -5:] == 77).all()


@few
@given(
    rows=st.integers(2, 70),
    first_row=st.integers(0, 69),
    first_panel=st.integers(0, 4),
    seed=st.integers(0, 2**32),
)
def test_a_row_has_the_same_bits_alone(kernels, rows, first_row, first_panel, seed) -> None:
    first_row %= rows
    case = make_case(kernels, rows, 5, 128, seed)
    together, alone = (np.zeros((rows, 5 * PANEL), np.float32) for _ in range(2))
    run(kernels, "linear_float", case, together, rows)
    # The result starts with the first panel.
    run(
        kernels,
        "linear_float",
        case,
        alone,
        rows - first_row,
        first_row=first_row,
        first_panel=first_panel,
    )
    columns = (5 - first_panel) * PANEL
    np.testing.assert_array_equal(
        together[first_row:, -columns:], alone[: rows - first_row, :columns]
    )
    assert not alone[:, columns:].any()


@few
@sizes
def test_each_row_may_have_a_scale(dynamic_kernels, rows, panels, depth, seed) -> None:
    case = make_case(dynamic_kernels, rows, panels, depth, seed)
    rng = np.random.default_rng(seed)
    scales, bias = rng.uniform(0.1, 2, rows).astype(np.float32), case.arrays[3]
    expected = (case.values - bias) * scales[:, None].astype(np.float64) + bias
    out = np.full((rows + 1, panels * PANEL + 5), np.nan, np.float32)
    run(dynamic_kernels, "linear_float", case, out, rows, row_scales=scales)
    np.testing.assert_allclose(out[:rows, :-5], expected, rtol=2e-6, atol=2e-6)
    assert np.isnan(out[rows:]).all()
    assert np.isnan(out[:, -5:]).all()
    residual = np.ones((rows, panels * PANEL), np.float32)
    run(dynamic_kernels, "linear_add", case, residual, rows, row_scales=scales)
    np.testing.assert_allclose(residual, expected + 1, rtol=2e-6, atol=2e-6)


@few
@sizes
def test_layers_in_float_compute_what_numpy_does(float_kernels, rows, panels, depth, seed) -> None:
    case = float_case(rows, panels, depth, seed)
    out = np.full((rows + 1, panels * PANEL + 5), np.nan, np.float32)
    run(float_kernels, "linear_float", case, out, rows)
    np.testing.assert_allclose(out[:rows, :-5], case.values, rtol=1e-5, atol=1e-5)
    assert np.isnan(out[rows:]).all()
    assert np.isnan(out[:, -5:]).all()
    residual = np.ones((rows, panels * PANEL), np.float32)
    run(float_kernels, "linear_add", case, residual, rows)
    np.testing.assert_array_equal(residual, 1 + out[:rows, :-5])
    alone = np.zeros((1, panels * PANEL), np.float32)
    run(float_kernels, "linear_float", case, alone, 1, first_row=rows - 1)
    np.testing.assert_array_equal(alone[0], out[rows - 1, :-5])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_functions_in_float_are_exact(float_kernels, name) -> None:
    case = float_case(9, 3, 128, 0)
    out = np.zeros((9, 3 * PANEL), np.float32)
    run(float_kernels, f"linear_{name}", case, out, 9)
    np.testing.assert_allclose(out, ACTIVATIONS[name](case.values), atol=5e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_may_have_an_activation_function(dynamic_kernels, name) -> None:
    case = make_case(dynamic_kernels, 9, 3, 128, 0)
    out = np.zeros((9, 3 * PANEL), np.float32)
    run(dynamic_kernels, f"linear_{name}", case, out, 9, row_scales=np.ones(9, np.float32))
    np.testing.assert_allclose(out, ACTIVATIONS[name](case.values), atol=_TOLERANCE)


@few
@sizes
def test_values_may_be_rounded_before_they_are_added(
    rounding_kernels, rows, panels, depth, seed
) -> None:
    case = make_case(rounding_kernels, rows, panels, depth, seed)
    columns, rng = panels * PANEL, np.random.default_rng(seed)
    states = rng.standard_normal((rows, columns)).astype(np.float32)
    codes, expected = ((3, -128, 127), (0, -128, 127)), []
    steps = rng.uniform(0.01, 0.02, (2, columns)).astype(np.float32)
    arrays = [(1 / step, step) for step in steps]
    records = [round_trip_record(*each, own) for each, own in zip(arrays, codes, strict=True)]
    for value, each, own in zip((case.values, states), arrays, codes, strict=True):
        expected.append(round_trip(value, *each, *own))
    out = states.copy()
    extra = np.concatenate(records)
    run(rounding_kernels, "linear_add_rounded", case, out, rows, extra)
    # A value next to the edge of a step may be on its other side.
    wrong = np.abs(out - sum(expected)) > 1e-5
    assert np.count_nonzero(wrong) <= 4 + 0.002 * wrong.size
    assert np.abs(out - sum(expected))[wrong].max(initial=0) <= 1.01 * steps.max()
