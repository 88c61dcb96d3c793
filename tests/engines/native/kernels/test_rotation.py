"""Rotary position embeddings, against numpy in float64."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import bytes_of_row, few
from native_references import rotate


@few
@given(
    rows=st.integers(1, 9),
    heads=st.integers(1, 4),
    size=st.sampled_from((32, 64, 96)),
    seed=st.integers(0, 2**32),
)
def test_heads_are_rotated_by_their_position(modern_kernels, rows, heads, size, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows + 1, heads * size + 16)).astype(np.float32)
    positions = rng.integers(0, 20, rows).astype(np.int32)
    table = rng.standard_normal((20, 2, size // 2)).astype(np.float32)
    expected = rotate(x[:rows, : heads * size].reshape(rows, heads, size), positions, table)
    rest = x[:rows, heads * size :].copy(), x[rows].copy()
    place = x[:, : heads * size], bytes_of_row(x)
    modern_kernels("rotate_rows", *place, rows, heads, size, positions, table)
    found = x[:rows, : heads * size].reshape(rows, heads, size)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(x[:rows, heads * size :], rest[0])
    np.testing.assert_array_equal(x[rows], rest[1])


def test_a_rotation_keeps_products_of_equal_distances() -> None:
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 1, 32))
    angles = np.arange(40)[:, None] * rng.uniform(0, 1, 16)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def product(one: int, other: int) -> float:
        rotated = (rotate(x, np.array([at]), table) for x, at in ((query, one), (key, other)))
        return float(np.prod(list(rotated), axis=0).sum())

    np.testing.assert_allclose(product(3, 8), product(30, 35))
    assert abs(product(3, 8) - product(3, 9)) > 0.01
