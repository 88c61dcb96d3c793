"""Products of activations and gates, against numpy in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import ACTIVATIONS_OF_NUMPY, bytes_of_row, few


@few
@given(
    rows=st.integers(1, 5),
    channels=st.integers(1, 6).map(lambda each: 16 * each),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_activation_of_a_half_is_multiplied_by_the_other(
    modern_kernels, rows, channels, in_place, seed
) -> None:
    x = 3 * np.random.default_rng(seed).standard_normal((rows, 2 * channels)).astype(np.float32)
    given = x.astype(np.float64)
    expected = ACTIVATIONS_OF_NUMPY["gelu"](given[:, :channels]) * given[:, channels:]
    out = x if in_place else np.full((rows, channels), 7, np.float32)
    strides = bytes_of_row(x), bytes_of_row(out)
    modern_kernels("gate_rows", x, strides[0], rows, channels, out, strides[1])
    np.testing.assert_allclose(out[:, :channels], expected, atol=3e-3)
    np.testing.assert_array_equal(x[:, channels:], given[:, channels:])
