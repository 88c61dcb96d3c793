"""Scores of queries and keys in 16-bit integers, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, few, forget_arrays
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.short_products import ShortProducts
from qdqbert.engines.native.memory import LINE, padded

_DEPTH, _ROWS = 32, 16
_FACTOR = 0.25
# Half of a step that each number of a query and a key may be off, relative to the norm.
_TOLERANCE = 1.01 * 2.0**-16


@pytest.fixture(autouse=True)
def _is_short(kernels) -> None:
    if not isinstance(kernels.isa.products, ShortProducts):
        pytest.skip("has other products")


def scores(kernels, queries: Any, keys: Any) -> Any:
    """Return the scores of the kernels, `(queries, keys)`."""
    forget_arrays()
    (rows, size), count = queries.shape, len(keys)
    # What kernels may read and must not use.
    x, other = (
        np.concatenate([each, np.full((16, size), np.nan, np.float32)]) for each in (queries, keys)
    )
    deep, columns = padded(size, _DEPTH), padded(count, PANEL)
    packed_rows = np.full((padded(rows, _ROWS), deep * 2 + LINE), 77, np.uint8)
    packed_keys = np.full((columns // PANEL, PANEL * (deep * 2 + 8)), 77, np.uint8)
    kernels("short_rows", x, bytes_of_row(x), rows, size, packed_rows)
    kernels("pack_keys", other, bytes_of_row(other), count, size, _FACTOR, packed_keys, 0, 0, 0)
    out = np.full((rows + 1, columns + 3), 9, np.float32)
    end = packed_keys.shape[1]
    sizes = (end, len(packed_keys), end - 8 * PANEL, out[:rows, :columns], bytes_of_row(out))
    kernels(
        "short_product",
        packed_rows,
        bytes_of_row(packed_rows),
        rows,
        packed_keys,
        *sizes,
        deep // 2,
    )
    assert (out[rows:] == 9).all()
    assert (out[:, columns:] == 9).all()
    return out[:rows, :count]


def check(kernels, queries: Any, keys: Any) -> None:
    wide = [each.astype(np.float64) for each in (queries, keys)]
    norms = [np.linalg.norm(each, axis=1) for each in wide]
    error = np.abs(scores(kernels, queries, keys) - _FACTOR * wide[0] @ wide[1].T)
    largest = 2 * np.sqrt(queries.shape[1]) * _TOLERANCE
    assert (error <= largest * _FACTOR * np.outer(*norms)).all()


@few
@given(
    rows=st.integers(1, 30),
    count=st.integers(1, 90),
    size=st.integers(1, 8).map(lambda each: 16 * each),
    powers=st.tuples(st.integers(-30, 30), st.integers(-30, 30)),
    seed=st.integers(0, 2**32),
)
def test_scores_are_those_of_numpy(kernels, rows, count, size, powers, seed) -> None:
    rng = np.random.default_rng(seed)
    # Rows differ in size, and some numbers are much larger than others.
    queries, keys = (
        (
            2.0**power
            * np.exp(rng.standard_normal((number, 1)))
            * rng.standard_normal((number, size)) ** 3
        ).astype(np.float32)
        for number, power in zip((rows, count), powers, strict=True)
    )
    check(kernels, queries, keys)


@pytest.mark.parametrize("size", [16, 32, 80, 128])
def test_the_largest_sums_fit_in_32_bits(kernels, size) -> None:
    one, all_equal = np.zeros(size, np.float32), np.full(size, 3, np.float32)
    one[5] = 1e3
    rows = np.stack([one, -one, all_equal, -all_equal, np.zeros(size, np.float32)])
    check(kernels, rows, rows)


def test_rows_that_are_not_finite_have_no_scores_and_leave_the_others_alone(kernels) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    expected = scores(kernels, rows, rows)
    rows[1, 7] = np.nan
    found = scores(kernels, rows, rows)
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 1]).all()
    np.testing.assert_array_equal(found[::2, ::2], expected[::2, ::2])
