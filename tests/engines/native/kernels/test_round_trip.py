"""Fake quantization of values that stay in float32, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, few, round_trip_record
from native_references import round_trip
from qdqbert.engines.native.kernels.dot import PANEL

# Zero point, lowest and highest code.
SIGNED, UNSIGNED, AFFINE = (0, -128, 127), (0, 0, 255), (133, 0, 255)
rounded = given(
    rows=st.integers(1, 5),
    panels=st.integers(1, 5),
    codes=st.sampled_from((SIGNED, UNSIGNED, AFFINE)),
    seed=st.integers(0, 2**32),
)


class Case:
    """Values that are no rounding ties, and a record that rounds them."""

    def __init__(self, rows: int, channels: int, codes: tuple[int, int, int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        # A power of 2 and its inverse have no rounding error.
        factor = 2.0 ** rng.integers(-3, 5, channels)
        self.multiplier, self.step = (each.astype(np.float32) for each in (factor, 1 / factor))
        # A tenth of them are outside of the codes.
        places = rng.integers(codes[1] - 12, codes[2] + 13, (rows, channels)) - codes[0]
        self.x = ((places + rng.uniform(-0.45, 0.45, places.shape)) / factor).astype(np.float32)
        self.record = round_trip_record(self.multiplier, self.step, codes)
        self.expected = round_trip(self.x, self.multiplier, self.step, *codes)


@few
@rounded
def test_rows_are_rounded_in_place(rounding_kernels, rows, panels, codes, seed) -> None:
    channels = PANEL * panels
    case = Case(rows, channels, codes, seed)
    wide = np.full((rows + 1, channels + 5), 7, np.float32)
    wide[:rows, :channels] = case.x
    place = (wide[:rows, :channels], bytes_of_row(wide))
    rounding_kernels("round_rows", case.record, 0, *place, channels, rows)
    np.testing.assert_array_equal(wide[:rows, :channels], case.expected)
    assert (wide[rows] == 7).all()
    assert (wide[:, channels:] == 7).all()


def test_rows_may_start_at_any_panel(rounding_kernels) -> None:
    case = Case(3, 4 * PANEL, AFFINE, 0)
    part = np.ascontiguousarray(case.x[:, PANEL:])
    places = (part, bytes_of_row(part), 3 * PANEL, 3)
    rounding_kernels("round_rows", case.record, PANEL, *places)
    np.testing.assert_array_equal(part, case.expected[:, PANEL:])


def test_rows_without_a_record_stay_as_they_are(rounding_kernels) -> None:
    x = np.linspace(-3, 3, PANEL, dtype=np.float32)[None]
    before = x.copy()
    rounding_kernels("round_rows", 0, 0, x, bytes_of_row(x), PANEL, 1)
    np.testing.assert_array_equal(x, before)


@few
@rounded
def test_both_terms_of_a_sum_are_rounded(rounding_kernels, rows, panels, codes, seed) -> None:
    channels = PANEL * panels
    added, states = Case(rows, channels, codes, seed), Case(rows, channels, SIGNED, seed + 1)
    x, records = states.x.copy(), np.concatenate([added.record, states.record])
    rounding_kernels("add_rounded_rows", records, x, added.x, channels, rows)
    np.testing.assert_allclose(x, added.expected + states.expected, rtol=1e-7)


@pytest.mark.parametrize("kept", [0, 1])
def test_one_term_may_stay_as_it_is(rounding_kernels, kept) -> None:
    cases: list[Any] = [Case(2, PANEL, AFFINE, seed) for seed in range(2)]
    cases[kept].record[-1] = 1
    x = cases[1].x.copy()
    records = np.concatenate([each.record for each in cases])
    rounding_kernels("add_rounded_rows", records, x, cases[0].x, PANEL, 2)
    terms = [each.x if index == kept else each.expected for index, each in enumerate(cases)]
    np.testing.assert_allclose(x, sum(terms), rtol=1e-6, atol=1e-6)
