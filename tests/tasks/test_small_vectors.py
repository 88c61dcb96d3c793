"""Codes of embeddings, compared with sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qdqbert.common.choices import OUTPUT_DTYPES
from qdqbert.common.errors import UserInputError
from qdqbert.tasks.small_vectors import DTYPES, VectorRanges, checked_limits, quantize_vectors

VECTORS = np.random.default_rng(0).normal(size=(40, 20)).astype(np.float32)


@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("width", [20, 16, 3])
def test_codes_are_those_of_sentence_transformers(dtype, width) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    # A dimension that is always the same, values at the bounds, and values outside of them.
    vectors = VECTORS[:, :width].copy()
    vectors[:, 1] = 0.25
    vectors[0, 2] = 0
    ranges = np.stack([vectors[:20].min(axis=0), vectors[:20].max(axis=0)])
    found = quantize_vectors(vectors, dtype, ranges)
    expected = util.quantize_embeddings(vectors, precision=dtype, ranges=ranges)
    assert found.dtype == expected.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(found, expected)
    one = quantize_vectors(vectors[0], dtype, ranges)
    np.testing.assert_array_equal(one, expected[0])


def test_codes_of_int8_stand_for_values_within_a_step() -> None:
    ranges = VectorRanges.of(VECTORS).limits(None, is_scaled=False)
    low, high = ranges.astype(np.float64)
    codes = quantize_vectors(VECTORS, "int8", ranges).astype(np.float64)
    step = (high - low) / 255
    error = np.abs(low + (codes + 128.5) * step - VECTORS)
    assert (error <= 0.5 * step * (1 + 1e-4)).all()


def test_ranges_are_those_of_the_vectors() -> None:
    ranges = VectorRanges.of(list(VECTORS))
    limits = ranges.limits(None, is_scaled=False)
    np.testing.assert_array_equal(limits, [VECTORS.min(axis=0), VECTORS.max(axis=0)])
    np.testing.assert_array_equal(ranges.limits(8, is_scaled=False), limits[:, :8])
    np.testing.assert_array_equal(ranges.limits(64, is_scaled=False), limits)


@pytest.mark.parametrize("width", [20, 8])
def test_ranges_of_scaled_vectors_are_divided_by_the_mean_length(width) -> None:
    cut = VECTORS[:, :width].astype(np.float64)
    length = np.linalg.norm(cut, axis=1).mean()
    expected = np.stack([cut.min(axis=0), cut.max(axis=0)]) / length
    found = VectorRanges.of(VECTORS).limits(width, is_scaled=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_ranges_of_vectors_of_length_1_are_the_same_if_these_are_scaled() -> None:
    ranges = VectorRanges.of(VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True))
    assert ranges.have_length_1
    assert not VectorRanges.of(VECTORS).have_length_1
    expected = ranges.limits(None, is_scaled=False)
    np.testing.assert_array_equal(ranges.limits(None, is_scaled=True), expected)
    assert (ranges.limits(8, is_scaled=True)[1] > expected[1, :8]).all()


def test_ranges_are_the_same_after_json() -> None:
    ranges = VectorRanges.of(VECTORS)
    found = VectorRanges.of_json(json.loads(json.dumps(ranges.to_json())))
    for name in ("low", "high", "lengths"):
        np.testing.assert_array_equal(getattr(found, name), getattr(ranges, name))
        assert getattr(found, name).dtype == np.float32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0.0, 1.0]], r"got shape \(1, 2\)"),
        ([0.0, 1.0], r"got shape \(2,\)"),
        ("ranges.npy", "got str"),
        ([[0.0, 2.0], [1.0, 1.0]], "a smallest one above the largest"),
        ([[0.0], [np.inf]], "a value that is not finite"),
    ],
)
def test_ranges_of_another_form_are_refused(given, message) -> None:
    with pytest.raises(UserInputError, match=rf"`ranges` has to be \(2, dimensions\).*{message}"):
        checked_limits(given)


def test_ranges_of_fewer_dimensions_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"`ranges` has 8 dimensions, .* 20"):
        quantize_vectors(VECTORS, "int8", np.zeros((2, 8), np.float32))
