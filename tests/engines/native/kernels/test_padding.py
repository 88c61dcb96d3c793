"""Texts without padding and results with it, against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import few

UNCOUNTED = 1


@few
@given(
    texts=st.integers(1, 5),
    length=st.integers(1, 20),
    has_types=st.booleans(),
    counts_all=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_tokens_that_are_not_padding_follow_each_other(
    kernels, texts, length, has_types, counts_all, seed
) -> None:
    rng = np.random.default_rng(seed)
    shape = (texts, length)
    ids, types = rng.integers(0, 5, shape), rng.integers(0, 2, shape) * has_types
    # Masks may have gaps, and numbers other than 0 and 1.
    mask = rng.integers(-1, 2, shape)
    kept = mask != 0
    tokens = np.count_nonzero(kept)
    numbers, starts = np.full((3, tokens), -9, np.int32), np.zeros(texts + 1, np.int64)
    ends = np.zeros(4, np.int64)
    kernels(
        "remove_padding",
        *(ids, mask, types if has_types else 0, texts, length),
        *((-1, 0) if counts_all else (UNCOUNTED, 1)),
        *(*numbers, starts, ends),
    )
    positions = np.cumsum(kept, axis=1) - 1
    if not counts_all:
        counted = kept & (ids != UNCOUNTED)
        positions = np.cumsum(counted, axis=1) * counted
    expected = [each[kept] for each in (ids, positions, types)]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(starts, [0, *np.cumsum(kept.sum(axis=1))])
    if tokens:
        found = [each(part) for part in expected[::2] for each in (np.min, np.max)]
        np.testing.assert_array_equal(ends, found)


@few
@given(
    count=st.integers(1, 9),
    channels=st.integers(1, 70),
    spare=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_rows_get_their_places_and_padding_gets_zeros(
    kernels, count, channels, spare, seed
) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 2, count)
    rows = rng.standard_normal((mask.sum(), channels + spare)).astype(np.float32)
    out = np.full((count, channels), np.nan, np.float32)
    source = rows[:, :channels]
    kernels("restore_padding", mask, count, source, rows.strides[0], channels, out)
    expected = np.zeros_like(out)
    expected[mask == 1] = source
    np.testing.assert_array_equal(out, expected)
