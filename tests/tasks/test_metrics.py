from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from qdqbert.tasks.metrics import accuracy, f1_binary, f1_macro, matthews, pearson, spearman

# Two ways to round the same float64 sums; the largest observed difference is about 1e-13.
TOLERANCE = 1e-8

score_pairs = st.lists(
    st.tuples(st.integers(-1000, 1000), st.floats(-100, 100, width=16)), min_size=2, max_size=60
)
class_pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
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
    assert accuracy(predictions, labels) == expected


def _table(pairs: list[tuple[int, int]]) -> np.ndarray:
    """Examples by label and prediction; classes of neither left out."""
    classes = sorted({each for pair in pairs for each in pair})
    table = np.zeros((len(classes), len(classes)))
    for prediction, label in pairs:
        table[classes.index(label), classes.index(prediction)] += 1
    return table


def test_f1_by_hand() -> None:
    # Of class 1: two right, one of three predictions and two of four labels missed.
    predictions, labels = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]
    assert f1_binary(predictions, labels) == pytest.approx(100 * 4 / 7, abs=TOLERANCE)
    # Of class 0: one right, two of three predictions and one of two labels missed.
    assert f1_binary(predictions, labels, positive=0) == pytest.approx(40, abs=TOLERANCE)
    assert f1_macro(predictions, labels) == pytest.approx((400 / 7 + 40) / 2, abs=TOLERANCE)
    assert f1_binary(["yes", "no"], ["yes", "yes"], positive="yes") == pytest.approx(200 / 3)


@pytest.mark.parametrize("metric", [f1_binary, matthews])
def test_a_class_that_does_not_occur_scores_0(metric) -> None:
    assert metric([0, 0], [0, 0]) == 0
    assert metric([0, 0], [1, 1]) == 0
    assert metric([1, 0], [0, 0]) == 0


def test_macro_f1_is_over_the_classes_that_are_predicted_or_labelled() -> None:
    # Class 1 is only predicted and class 2 only labelled: both score 0. Class 3 does not occur.
    assert f1_macro([0, 1], [0, 2]) == pytest.approx(100 / 3, abs=TOLERANCE)


def test_matthews_by_hand() -> None:
    # TP 2, TN 1, FP 1, FN 2: (2 · 1 - 1 · 2) / sqrt(3 · 4 · 2 · 3) = 0.
    assert matthews([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]) == 0
    # TP 2, TN 1, FP 1, FN 0: (2 · 1 - 0) / sqrt(3 · 2 · 2 · 1) = 2 / sqrt(12).
    assert matthews([1, 1, 1, 0], [1, 1, 0, 0]) == pytest.approx(200 / 12**0.5, abs=TOLERANCE)
    assert matthews([1, 0], [0, 1]) == -100
    assert matthews(["a", "b", "c"], ["a", "b", "c"]) == 100


@given(class_pairs)
def test_f1_agrees_with_precision_and_recall_of_the_confusion_table(pairs) -> None:
    table = _table(pairs)
    scores = []
    for each in range(len(table)):
        precision = table[each, each] / max(table[:, each].sum(), 1)
        recall = table[each, each] / max(table[each].sum(), 1)
        scores.append(2 * precision * recall / max(precision + recall, 1e-9))
    predictions, labels = zip(*pairs, strict=True)
    assert f1_macro(predictions, labels) == pytest.approx(100 * np.mean(scores), abs=TOLERANCE)
    for score, each in zip(scores, sorted({*predictions, *labels}), strict=True):
        assert f1_binary(predictions, labels, positive=each) == pytest.approx(
            100 * score, abs=TOLERANCE
        )


@given(class_pairs)
def test_matthews_agrees_with_the_covariances_of_indicators(pairs) -> None:
    x, y = (np.eye(4)[list(side)] for side in zip(*pairs, strict=True))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    spread = (x**2).sum() * (y**2).sum()
    # The spread of a constant side is 0 up to rounding, that of any other at least about 1/4.
    expected = 0 if spread < 1e-9 else 100 * (x * y).sum() / spread**0.5
    assert matthews(*zip(*pairs, strict=True)) == pytest.approx(expected, abs=TOLERANCE)


def test_correlations_by_hand() -> None:
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(100.0, abs=TOLERANCE)
    assert spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-100.0, abs=TOLERANCE)
    # Ranks 1, 2.5, 2.5 against 1, 2, 3: 1.5 / sqrt(1.5 · 2) = 0.8660…
    assert spearman([5, 7, 7], [0, 1, 2]) == pytest.approx(100 * 3**0.5 / 2, abs=TOLERANCE)


@given(st.one_of(score_pairs, tied_pairs))
def test_pearson_agrees_with_scipy(pairs) -> None:
    x, y = _split(pairs)
    assert pearson(x, y) == pytest.approx(100 * stats.pearsonr(x, y).statistic, abs=TOLERANCE)


@given(st.one_of(score_pairs, tied_pairs))
def test_spearman_agrees_with_scipy_with_ties_too(pairs) -> None:
    x, y = _split(pairs)
    assert spearman(x, y) == pytest.approx(100 * stats.spearmanr(x, y).statistic, abs=TOLERANCE)


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


@pytest.mark.parametrize("metric", [accuracy, f1_binary, f1_macro, matthews, pearson, spearman])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "must not be empty"),
        ([1, 2], [1, 2, 3], "equal lengths, got 2 and 3"),
        ([1.0, float("nan")], [1, 2], "must not contain NaN"),
        ([1, 2], [1.0, float("nan")], "must not contain NaN"),
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


@pytest.mark.parametrize("metric", [accuracy, f1_binary, f1_macro, matthews])
def test_classes_are_not_compared_between_strings_and_numbers(metric) -> None:
    with pytest.raises(ValueError, match="must both be strings or both be numbers"):
        metric([1, 0], ["1", "0"])
