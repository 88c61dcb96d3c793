"""Products of float32 with tiles of bfloat16, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, few
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.split import DEPTH
from qdqbert.engines.native.kernels.split_products import SplitProducts
from qdqbert.engines.native.memory import padded

# What the two bfloat16 of a number leave, and the product that is left out.
_TOLERANCE = 2.0**-15


def split(kernels, x: np.ndarray) -> np.ndarray:
    """Return rows as pairs of bfloat16, `(rows, depth / 32, high or low, 16, 2)`."""
    out = np.full((len(x), padded(x.shape[1], DEPTH)), np.nan, np.float32)
    kernels("split_rows", x, bytes_of_row(x), *x.shape, out)
    return out.view(np.uint16).reshape(len(x), -1, 2, PANEL, 2)


def in_float(pairs: np.ndarray) -> np.ndarray:
    return (pairs.astype(np.uint32) << 16).view(np.float32)


@pytest.fixture(autouse=True)
def _has_tiles(kernels) -> None:
    if kernels.isa.products != SplitProducts():
        pytest.skip("has no tiles")


@few
@given(
    rows=st.integers(1, 5),
    panels=st.integers(1, 6),
    power=st.integers(-30, 30),
    seed=st.integers(0),
)
def test_a_number_is_the_sum_of_two_bfloat16(kernels, rows, panels, power, seed) -> None:
    size = panels * PANEL
    x = np.random.default_rng(seed).standard_normal((rows, size)).astype(np.float32) * 2.0**power
    x = x.astype(np.float32)
    parts = in_float(split(kernels, x)).astype(np.float64)
    # Pair `n` has the numbers `n` and `n + 16` of 32.
    found = parts.sum(axis=2).transpose(0, 1, 3, 2).reshape(rows, -1)
    np.testing.assert_allclose(found[:, :size], x, rtol=2.0**-16)
    assert not found[:, size:].any()


@few
@given(
    rows=st.integers(1, 70),
    panels=st.integers(1, 7),
    steps=st.integers(1, 5),
    seed=st.integers(0),
)
def test_rows_have_the_products_of_numpy(kernels, rows, panels, steps, seed) -> None:
    rng = np.random.default_rng(seed)
    columns, depth = panels * PANEL, steps * DEPTH
    x = rng.standard_normal((padded(rows, PANEL), depth)).astype(np.float32)
    weights = rng.standard_normal((columns, depth)).astype(np.float32)
    # Columns split like rows, and then pairs of 16 columns next to each other.
    pairs = split(kernels, weights).reshape(panels, PANEL, steps, 2, PANEL, 2)
    packed = np.ascontiguousarray(pairs.transpose(0, 2, 3, 4, 1, 5))
    split_x = split(kernels, x).reshape(len(x), -1)
    out = np.full((len(x), columns + 3), np.nan, np.float32)
    inner = out[:, :columns]
    sizes = (bytes_of_row(packed), panels, inner, bytes_of_row(out), depth)
    kernels.with_tiles("split_product", split_x, bytes_of_row(split_x), rows, packed, *sizes)
    wide = x[:rows].astype(np.float64)
    largest = np.abs(wide) @ np.abs(weights.T)
    assert (np.abs(inner[:rows] - wide @ weights.T) <= _TOLERANCE * largest).all()
    assert np.isnan(out[:, columns:]).all()
