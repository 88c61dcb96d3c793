"""Arrays as JSON: what is read again is the same number, and no text is longer than needed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qdqbert.data.tables.rows import object_line, to_json

FLOATS = arrays.arrays(
    np.float32, st.integers(0, 20), elements=st.floats(width=32, allow_nan=False)
)


def check(vector: np.ndarray) -> None:
    text = to_json(vector)
    # Readers have float64, which is rounded.
    numbers = [np.nan if each is None else each for each in json.loads(text)]
    found = np.array(numbers, np.float64).astype(np.float32)
    np.testing.assert_array_equal(found, np.where(np.isfinite(vector), vector, np.nan))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(vector) & (found == vector))
    for number, written in zip(vector, text[1:-1].split(","), strict=False):
        if np.isfinite(number):
            assert digits(written) == digits(np.format_float_scientific(number))


def digits(text: str) -> str:
    """Return the digits of a number, without zeros around them."""
    return text.partition("e")[0].strip("-").replace(".", "").strip("0")


@given(FLOATS)
def test_any_numbers(vector) -> None:
    check(vector)


def test_numbers_of_all_sizes() -> None:
    rng = np.random.default_rng(0)
    check(np.float32(10) ** rng.uniform(-9, 3, 3000).astype(np.float32))
    check(rng.standard_normal((4, 3000)).astype(np.float32)[:, 7])


@pytest.mark.parametrize("power", range(-9, 3))
def test_numbers_next_to_a_power_of_ten(power) -> None:
    bits = np.float32(10.0**power).view(np.uint32) + np.arange(-40, 41)
    values = bits.astype(np.uint32).view(np.float32)
    check(values)
    check(-values)


def test_arrays_of_each_kind() -> None:
    odd = np.array([10, 0.1, np.nan, np.inf, -np.inf, -0.0], np.float32)
    assert to_json(odd) == "[10.0,0.1,null,null,null,-0.0]"
    assert to_json(odd.reshape(2, 3)[:, :2]) == "[[10.0,0.1],[null,null]]"
    assert to_json(np.zeros((0, 3), np.float32)) == "[]"
    assert to_json(np.array([1, -2], np.int8)) == "[1,-2]"
    assert to_json(np.array([1, 255], np.uint8)) == "[1,255]"
    assert to_json({"a": [np.zeros(1, np.float32)]}) == '{"a": [[0.0]]}'


def test_lines_of_objects() -> None:
    row = {
        "id": 2**63,
        "text": "é\u2028\n",
        "score": float("inf"),
        "embedding": np.float32([0.1, 2]),
    }
    assert object_line(row) == (
        b'{"id":9223372036854775808,"text":"\xc3\xa9\xe2\x80\xa8\\n","score":null,'
        b'"embedding":[0.1,2.0]}\n'
    )
    # Of more than 64 bits.
    line = object_line(row | {"id": 2**64})
    assert line.startswith(b'{"id": 18446744073709551616, ')
    values = json.loads(line)
    assert values == row | {"id": 2**64, "score": None, "embedding": values["embedding"]}
    np.testing.assert_array_equal(np.float32(values["embedding"]), row["embedding"])
