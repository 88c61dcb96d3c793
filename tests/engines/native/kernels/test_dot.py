"""The layout of weights."""

from __future__ import annotations

import numpy as np

from qdqbert.engines.native.kernels.dot import pack


def test_weights_are_packed_in_panels_of_16_columns() -> None:
    weights = np.arange(20 * 6).reshape(20, 6).astype(np.int8)
    packed = pack(weights, 8)
    assert packed.shape == (2, 2, 16, 4)
    np.testing.assert_array_equal(packed[0, 0, 3], weights[3, :4])
    np.testing.assert_array_equal(packed[1, 1, 2], [*weights[18, 4:], 0, 0])
    assert not packed[1, :, 4:].any()
