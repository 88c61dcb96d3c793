from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qdqbert.evidence.intervals import (
    bootstrap_interval,
    difference_interval,
    fewest_trials,
    joined_keys,
    proportion_interval,
    share_interval,
    times_needed,
)
from qdqbert.tasks.logits import extreme_classes, score_of_pairs
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Score, mean_score


def ends(found: object) -> tuple[float, float]:
    return found.low, found.high


def with_changes(worse: int, better: int, count: int) -> tuple[Score, Score]:
    """Return scores of a model and of float, which differ in some of the examples."""
    ours, theirs = np.ones(count), np.ones(count)
    ours[:worse], theirs[worse : worse + better] = 0, 0
    return mean_score("accuracy", ours), mean_score("accuracy", theirs)


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


@pytest.mark.parametrize("share", [0.3, 0.05, 0.005, 0.0001])
def test_the_fewest_trials_are_those_whose_interval_ends_at_the_share(share) -> None:
    count = fewest_trials(share)
    assert proportion_interval(0, count).high <= share < proportion_interval(0, count - 1).high


def test_the_interval_of_one_decision_for_each_text_is_exact() -> None:
    counts = np.ones((60, 2))
    counts[7:, 0] = 0
    assert ends(share_interval(counts, range(60))) == ends(proportion_interval(7, 60))


def test_decisions_of_a_text_that_change_together_count_as_one() -> None:
    # 3 of 40 texts of 5 words: all of their words changed, or as many of as many others.
    together, apart = (np.array([[0.0, 5.0]] * 40) for _ in range(2))
    together[:3, 0], apart[:15, 0] = 5, 1
    assert ends(share_interval(together, range(40))) == ends(proportion_interval(3, 40))
    assert ends(share_interval(apart, range(40))) == ends(proportion_interval(15, 200))


@pytest.mark.parametrize("changed", [0, 4, 50])
def test_equal_texts_count_once(changed) -> None:
    flags = np.arange(50) < changed
    counts = np.stack([flags, np.ones(50)], axis=1)
    three = share_interval(np.tile(counts, (3, 1)), [*range(50)] * 3)
    assert ends(three) == ends(share_interval(counts, range(50)))
    scores = [mean_score("a", each) for each in (1 - flags, np.ones(50))]
    tripled = [mean_score("a", np.tile(each.rows[:, 0], 3)) for each in scores]
    assert ends(difference_interval(*tripled, [*range(50)] * 3)) == pytest.approx(
        ends(difference_interval(*scores, range(50)))
    )


def test_the_bootstrap_of_a_mean_is_close_to_its_normal_interval() -> None:
    rows = np.random.default_rng(1).normal(3, 2, (400, 1))

    def mean(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return weights @ rows[:, 0] / weights.sum(axis=1)

    found = bootstrap_interval(rows, mean, (rows[None], rows[None]), range(400))
    half = 1.96 * float(rows.std()) / 20
    # The ends of 1000 samples vary.
    assert found.low == pytest.approx(float(rows.mean()) - half, abs=0.15 * half)
    assert found.high == pytest.approx(float(rows.mean()) + half, abs=0.15 * half)


def test_models_are_compared_on_the_same_samples() -> None:
    # Both depend on the sample by much more than by their difference, which is always the same.
    labels = np.arange(300) % 2
    flipped = np.where(np.arange(300) < 150, labels, 1 - labels)
    ours = score_of_pairs("accuracy", flipped, labels, accuracy, extreme_classes(2))
    found = difference_interval(ours, ours, range(300))
    assert ends(found) == pytest.approx((-1.22, 1.22), abs=0.03)


@pytest.mark.parametrize(
    ("worse", "better", "count"), [(0, 0, 8), (0, 0, 40), (3, 0, 40), (0, 0, 872), (9, 0, 872)]
)
def test_a_loss_has_the_interval_of_its_share_of_examples(worse, better, count) -> None:
    # Without examples that got better, the loss is the share of those that got worse: as many
    # may be lost of other examples as may be changed predictions.
    found = difference_interval(*with_changes(worse, better, count), range(count))
    high = 100 * proportion_interval(worse, count).high
    # A bootstrap of 1000 samples.
    assert -found.low == pytest.approx(high, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 300])
@pytest.mark.parametrize("worse", [1.0, 0.3])
@pytest.mark.parametrize("better", [0.0, 1.0])
def test_the_interval_of_a_difference_has_the_real_one_in_it(count, worse, better) -> None:
    # Examples of each kind, or a share of them.
    shares = [each / count if each == 1 else each for each in (worse, better)]
    random, known = np.random.default_rng(3), {}
    found = 0
    for _ in range(500):
        drawn = tuple(random.multinomial(count, [*shares, 1 - sum(shares)])[:2])
        if drawn not in known:
            known[drawn] = difference_interval(*with_changes(*drawn, count), range(count))
        found += known[drawn].low <= 100 * (shares[1] - shares[0]) <= known[drawn].high
    # 95 %, less three standard deviations of the count.
    assert found >= 460


def test_texts_with_equal_keys_on_one_side_are_joined() -> None:
    assert joined_keys("abcd", "1234") == [0, 1, 2, 3]
    # The first one equals the last one over those between them.
    assert joined_keys("xyyzz", "11223") == [0, 0, 0, 0, 0]
    assert joined_keys("aabc", "1223") == [0, 0, 0, 3]


def test_different_numbers_of_examples_are_refused() -> None:
    scores = [mean_score("a", [0, 1]), mean_score("a", [0, 1, 1])]
    with pytest.raises(ValueError, match="equal numbers of examples, got 2 and 3"):
        difference_interval(*scores, range(2))


def test_infinite_values_have_an_interval() -> None:
    rows = np.ones((3, 1))
    found = bootstrap_interval(
        rows,
        lambda rows, weights: np.full(len(weights), math.inf),
        (rows[None], rows[None]),
        range(3),
    )
    assert ends(found) == (math.inf, math.inf)


def test_more_examples_of_the_same_kind_give_a_narrower_interval() -> None:
    scores = with_changes(2, 1, 60)
    few, many = (difference_interval(*scores, range(60), times=times) for times in (1, 20))
    assert few.low < many.low < scores[0].metric().value - 100 + 100 / 60 < many.high < few.high
    # The width is that of 20 times as many examples.
    whole = difference_interval(*with_changes(40, 20, 1200), range(1200))
    assert ends(many) == pytest.approx(ends(whole), abs=0.15)


def test_the_number_of_examples_that_show_something_is_found() -> None:
    assert times_needed(lambda times: times >= 37) == pytest.approx(37, rel=0.02)
    assert times_needed(lambda times: False) is None
