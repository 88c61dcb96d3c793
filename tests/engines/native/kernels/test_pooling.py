"""Rows of texts, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import few
from qdqbert.engines.native.kernels.pooling import POOLINGS

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=4)


@few
@given(lengths=LENGTHS, panels=st.integers(1, 3), seed=st.integers(0, 2**32))
@pytest.mark.parametrize("name", POOLINGS)
def test_rows_of_a_text_become_one(kernels, name, lengths, panels, seed) -> None:
    starts = np.array([0, *np.cumsum(lengths)], np.int64)
    shape = (starts[-1], 64 * panels)
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    out = np.full((len(lengths), shape[1]), np.nan, np.float32)
    kernels(f"pool_{name}", x, x.strides[0], starts, len(lengths), out)
    if name == "max":
        expected = np.maximum.reduceat(x, starts[:-1], axis=0)
    else:
        divisors = np.float32(lengths)[:, None]
        divisors = divisors if name == "mean" else np.sqrt(divisors)
        expected = np.add.reduceat(x, starts[:-1], axis=0) / divisors
    np.testing.assert_array_equal(out, expected)
