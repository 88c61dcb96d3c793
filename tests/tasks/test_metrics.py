from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from qdqbert.tasks.metrics import accuracy, pearson, spearman

# Two roundings of the same float64 sums; the largest seen difference is about 1e-13.
TOLERANCE = 1e-8

score_pairs = st.lists(
    st.tuples(st.integers(-1000, 1000), st.floats(-100, 100, width=16)), min_size=2, max_size=60
)
tied_pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60)


def _split(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    x, y = map(list, zip(*pairs, strict=True))
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    return x, y


@pytest.mark.parametrize(
    ("predictions", "labels", "expected"),
    [
        ([1, 0, 2, 2], [1, 0, 2, 1], 75.0),
        (["a", "b"], ["a", "b"], 100.0),
        ([0], [1], 0.0),
        (np.array([1, 0], dtype=np.int32), np.array([1.0, 1.0], dtype=np.float32), 50.0),
    ],
    ids=["integers", "strings", "all_wrong", "mixed_dtypes"],
)
def test_accuracy_by_hand(predictions, labels, expected) -> None:
    result = accuracy(predictions, labels)
    assert type(result) is float
    assert result == expected


def test_correlations_by_hand() -> None:
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(100.0, abs=TOLERANCE)
    assert spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-100.0, abs=TOLERANCE)
    # Ranks 1, 2.5, 2.5 against 1, 2, 3: 1.5 / sqrt(1.5 · 2) = 0.8660…
    assert spearman([5, 7, 7], [0, 1, 2]) == pytest.approx(100 * 3**0.5 / 2, abs=TOLERANCE)


@settings(deadline=None)
@given(st.one_of(score_pairs, tied_pairs))
def test_pearson_agrees_with_scipy(pairs) -> None:
    x, y = _split(pairs)
    assert pearson(x, y) == pytest.approx(100 * stats.pearsonr(x, y).statistic, abs=TOLERANCE)


@settings(deadline=None)
@given(st.one_of(score_pairs, tied_pairs))
def test_spearman_agrees_with_scipy_with_ties_too(pairs) -> None:
    x, y = _split(pairs)
    assert spearman(x, y) == pytest.approx(100 * stats.spearmanr(x, y).statistic, abs=TOLERANCE)


@settings(deadline=None)
@given(tied_pairs)
def test_correlation_is_symmetric_and_stays_within_100(pairs) -> None:
    x, y = _split(pairs)
    for metric in (pearson, spearman):
        assert -100.0 <= metric(x, y) <= 100.0
        assert metric(x, y) == pytest.approx(metric(y, x), abs=TOLERANCE)
        assert metric(x, x) == pytest.approx(100.0, abs=TOLERANCE)


def test_float32_input_is_summed_in_float64() -> None:
    x = np.arange(1, 9, dtype=np.float32) + np.float32(2**20)
    y = np.array([1, 3, 2, 5, 4, 7, 6, 8], dtype=np.float32)
    expected = 100 * stats.pearsonr(x.astype(np.float64), y.astype(np.float64)).statistic
    assert pearson(x, y) == pytest.approx(expected, abs=TOLERANCE)


def test_scores_whose_squares_overflow_still_correlate() -> None:
    assert pearson([1e300, 2e300, 3e300], [1, 2, 3]) == pytest.approx(100.0, abs=TOLERANCE)


@pytest.mark.parametrize("metric", [accuracy, pearson, spearman])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "must not be empty"),
        ([1, 2], [1, 2, 3], "equal lengths, got 2 and 3"),
        ([1.0, float("nan")], [1, 2], "must hold no NaN"),
        ([1, 2], [1.0, float("nan")], "must hold no NaN"),
        ([[1, 2]], [[1, 2]], r"shape `\(examples,\)`, got \(1, 2\)"),
    ],
    ids=["empty", "lengths", "nan_left", "nan_right", "two_axes"],
)
def test_unusable_input_is_refused(metric, x, y, message) -> None:
    with pytest.raises(ValueError, match=message):
        metric(x, y)


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([2, 2, 2], [1, 2, 3], "`x` must not be constant, got 3 times 2.0"),
        ([1, 2, 3], [0.1, 0.1, 0.1], "`y` must not be constant"),
        ([1], [2], "must not be constant, got 1 times"),
        ([1, float("inf")], [1, 2], "`x` must be finite"),
    ],
    ids=["constant_left", "constant_right", "one_example", "infinity"],
)
def test_undefined_correlation_is_refused(metric, x, y, message) -> None:
    with pytest.raises(ValueError, match=message):
        metric(x, y)


def test_accuracy_refuses_to_compare_strings_with_numbers() -> None:
    with pytest.raises(ValueError, match="must both be strings or both be numbers"):
        accuracy([1, 0], ["1", "0"])
