"""The layout of weights."""

from __future__ import annotations

import numpy as np

from qdqbert.engines.native.kernels.dot import first_sums, pack


def test_weights_are_packed_in_panels_of_16_columns() -> None:
    weights = np.arange(20 * 6).reshape(20, 6).astype(np.int8)
    packed = pack(weights, 8)
    assert packed.shape == (2, 2, 16, 4)
    np.testing.assert_array_equal(packed[0, 0, 3], weights[3, :4])
    np.testing.assert_array_equal(packed[1, 1, 2], [*weights[18, 4:], 0, 0])
    assert not packed[1, :, 4:].any()


def test_sums_make_up_for_the_128_that_signed_codes_lack() -> None:
    rng = np.random.default_rng(0)
    weights, codes = rng.integers(-128, 128, (20, 12)), rng.integers(0, 256, 12)
    packed, start = pack(weights.astype(np.int8), 16), rng.integers(-9999, 9999, 32, np.int32)
    np.testing.assert_array_equal(first_sums(packed, start, is_signed=False), start)
    first = first_sums(packed, start, is_signed=True)
    assert first.dtype == np.int32
    np.testing.assert_array_equal(
        first[:20] + weights @ (codes - 128), start[:20] + weights @ codes
    )
    np.testing.assert_array_equal(first[20:], start[20:])
