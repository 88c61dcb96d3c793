"""Vectors of float32 as JSON: what is read again is the same float32."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qdqbert.data.tables.numbers import json_lists, json_texts

FLOATS = arrays.arrays(
    np.float32, st.integers(0, 20), elements=st.floats(width=32, allow_nan=False)
)


def read(text: str) -> np.ndarray:
    return np.array([np.nan if each is None else each for each in json.loads(text)], np.float64)


def check(vectors: list[np.ndarray]) -> None:
    for vector, text in zip(vectors, json_lists(vectors), strict=True):
        # Readers have float64, which is rounded.
        found = read(text).astype(np.float32)
        np.testing.assert_array_equal(found, np.where(np.isfinite(vector), vector, np.nan))
        np.testing.assert_array_equal(np.signbit(found), np.signbit(vector) & (found == vector))


@given(st.lists(FLOATS, max_size=5))
def test_any_numbers(vectors) -> None:
    check(vectors)


def test_numbers_of_all_sizes() -> None:
    rng = np.random.default_rng(0)
    check([np.float32(10) ** rng.uniform(-9, 3, 3000).astype(np.float32) for _ in range(8)])
    check([rng.standard_normal((4, 3000)).astype(np.float32)[index] for index in range(4)])


@pytest.mark.parametrize("power", range(-9, 3))
def test_numbers_next_to_a_power_of_ten(power) -> None:
    bits = np.float32(10.0**power).view(np.uint32) + np.arange(-40, 41)
    values = bits.astype(np.uint32).view(np.float32)
    check([values, -values])


def test_texts_are_short() -> None:
    values = np.array([0, -0.0, 1, -1, 0.5, 0.1, 0.0625, 2.5e-7, -9.5], np.float32)
    assert json_lists([values]) == ["[0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 0.0625, 0.00000025, -9.5]"]
    odd = np.array([10, 0.1, np.nan, np.inf, -np.inf, 1.5, 7e-10], np.float32)
    assert json_lists([odd, values[:0], values[4:6]]) == [
        "[10.0, 0.1, null, null, null, 1.5, 7.00000002e-10]",
        "[]",
        "[0.5, 0.1]",
    ]
    assert json_lists([]) == []


def test_only_arrays_of_float32_are_written() -> None:
    rows = [np.array([[0.5], [1]], np.float32), np.zeros((0, 1), np.float32)]
    assert json_texts(rows) == ["[[0.5], [1.0]]", "[]"]
    assert json_texts([np.zeros(1)]) is None
    assert json_texts([[0.5]]) is None
    assert json_texts([np.zeros(1, np.float32), [0.5]]) is None
    assert json_texts([]) is None
