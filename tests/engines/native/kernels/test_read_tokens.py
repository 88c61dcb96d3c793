"""Rows of the tokens that are read are moved together and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, few


@few
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    lines=st.integers(1, 3),
    before=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_rows_of_tokens_move_together_and_back(kernels, lengths, lines, before, seed) -> None:
    starts = (before + np.array([0, *np.cumsum(lengths)])).astype(np.int64)
    texts, places = len(lengths), starts[:-1] - before
    rows = np.random.default_rng(seed).integers(0, 256, (sum(lengths), 64 * lines)).astype(np.uint8)
    x = rows.copy()
    arguments = (x, bytes_of_row(x), starts[:-1].copy(), texts)
    kernels("gather_read", *arguments)
    np.testing.assert_array_equal(x[:texts], rows[places])
    np.testing.assert_array_equal(x[texts:], rows[texts:])
    x[:texts] += 1
    kernels("return_read", *arguments)
    np.testing.assert_array_equal(x[places], rows[places] + np.uint8(1))
