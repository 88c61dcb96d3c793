from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qdqbert.evidence.intervals import bootstrap_interval, difference_interval, proportion_interval
from qdqbert.tasks.task import Score, mean_percent


def score(values: list[float]) -> Score:
    return Score(name="accuracy", rows=np.array(values, float)[:, None], compute=mean_percent)


@given(st.data())
def test_the_interval_of_a_proportion_is_that_of_scipy(data) -> None:
    total = data.draw(st.integers(1, 3000))
    count = data.draw(st.integers(0, total))
    found = proportion_interval(count, total)
    expected = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_nothing_is_known_without_trials() -> None:
    found = proportion_interval(0, 0)
    assert (found.low, found.high) == (0, 1)


def test_the_bootstrap_of_a_mean_is_close_to_its_normal_interval() -> None:
    rows = np.random.default_rng(1).normal(3, 2, (400, 1))
    found = bootstrap_interval(rows, lambda each: float(each.mean()))
    half = 1.96 * float(rows.std()) / 20
    # The ends of 1000 samples vary.
    assert found.low == pytest.approx(float(rows.mean()) - half, abs=0.15 * half)
    assert found.high == pytest.approx(float(rows.mean()) + half, abs=0.15 * half)


def test_models_are_compared_on_the_same_samples() -> None:
    # Both depend on the sample by much more than by their difference, which is always the same.
    values = np.random.default_rng(2).normal(0, 100, 50)
    found = difference_interval(score(list(values + 0.01)), score(list(values)))
    assert (found.low, found.high) == pytest.approx((1, 1))


def test_different_numbers_of_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="equal numbers of examples, got 2 and 3"):
        difference_interval(score([0, 1]), score([0, 1, 1]))


def test_samples_without_a_defined_value_are_left_out() -> None:
    def positive(rows: np.ndarray) -> float:
        if rows.sum() == 0:
            raise ValueError
        return 1.0

    found = bootstrap_interval(np.array([[0.0], [0.0], [1.0]]), positive)
    assert (found.low, found.high) == (1, 1)


def test_a_value_that_is_never_defined_has_no_bounds() -> None:
    def undefined(rows: np.ndarray) -> float:
        raise ValueError

    found = bootstrap_interval(np.ones((3, 1)), undefined)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_infinite_values_have_an_interval() -> None:
    found = bootstrap_interval(np.ones((3, 1)), lambda rows: math.inf)
    assert (found.low, found.high) == (math.inf, math.inf)
