from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.common.options.limits import Limits
from qdqbert.evidence.fidelity import compare
from qdqbert.evidence.intervals import Interval, proportion_interval
from qdqbert.evidence.limits import Measurement, check_limits, loss, metric_differences
from qdqbert.tasks.task import mean_score


def measured(value: float, low: float, high: float) -> Measurement:
    """Return a measurement whose interval is the narrower the more examples there are."""

    def interval_at(times: float) -> Interval:
        return Interval(low=value - (value - low) / times, high=value + (high - value) / times)

    return Measurement(value=value, interval_at=interval_at, examples=200)


MEASURED = {
    "max_drop": lambda: measured(1.0, -0.5, 2.0),
    "max_flips": lambda: measured(1.0, 0.5, 2.0),
    "min_sqnr": lambda: measured(30.0, 28.0, 32.0),
    "min_cosine": lambda: measured(0.9, 0.9, 0.9),
}


@pytest.mark.parametrize(
    ("option", "limit", "verdict", "needed"),
    [
        ("max_drop", 2, "met", None),
        ("max_drop", 1.9, "not shown", 230),
        ("max_drop", 1.1, "not shown", 2100),
        # What is beyond the limit is not shown by any number.
        ("max_drop", 0.9, "not shown", None),
        ("max_drop", 1, "not shown", None),
        ("max_flips", 2, "met", None),
        ("max_flips", 1.5, "not shown", 410),
        ("max_flips", 0.4, "missed", None),
        ("min_sqnr", 28, "met", None),
        ("min_sqnr", 29, "not shown", 410),
        ("min_sqnr", 32, "not shown", None),
        ("min_sqnr", 33, "missed", None),
        ("min_cosine", 0.9, "met", None),
        ("min_cosine", 0.91, "missed", None),
    ],
)
def test_a_limit_is_met_if_the_whole_interval_is_within_it(option, limit, verdict, needed) -> None:
    (check,) = check_limits(Limits(**{option: limit}), MEASURED)
    assert (check.option, check.limit, check.verdict) == (option, limit, verdict)
    assert check.examples_needed == (needed if needed is None else pytest.approx(needed, rel=0.03))


def test_the_number_of_examples_is_not_searched_for_where_nobody_reads_it() -> None:
    (check,) = check_limits(Limits(max_drop=1.9), MEASURED, counts_examples=False)
    assert (check.verdict, check.examples_needed) == ("not shown", None)


def test_the_drop_is_a_loss_whether_higher_or_lower_metrics_are_better() -> None:
    better, worse = mean_score("f1", np.ones(9)), mean_score("f1", np.arange(9) > 0)
    errors = [dataclasses.replace(each, is_error=True) for each in (better, worse)]
    found = [loss(worse, better, range(9)), loss(*errors, range(9))]
    assert [each.value for each in found] == pytest.approx([100 / 9] * 2)
    for each in found:
        assert each.interval.low < each.value < each.interval.high
        assert each.interval.high > 100 * proportion_interval(0, 9).high


@pytest.mark.parametrize(
    ("option", "message"), [("max_flips", "tasks that choose"), ("min_cosine", "embedders only")]
)
def test_a_limit_that_does_not_apply_to_the_task_is_refused(option, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        check_limits(Limits(**{option: 1}), {option: lambda: None})
    assert caught.value.argument == option


def test_metrics_that_both_models_have_are_compared() -> None:
    model = [mean_score(name, [1, 0, 1, 1]) for name in ("f1", "mcc")]
    reference = [mean_score("f1", np.ones(4))]
    (found,) = metric_differences(model, reference, lambda score: range(4))
    assert (found.name, found.value) == ("f1", -25)
    assert found.interval.low < -25 < 0 < found.interval.high


def test_intervals_of_the_fidelity_contain_its_values() -> None:
    random = np.random.default_rng(0)
    exact = random.normal(size=(200, 4))
    noisy = exact + random.normal(scale=0.1, size=exact.shape)
    answers = [[(int(row.argmax()),) for row in each] for each in (exact, noisy)]
    found = compare(list(exact), list(noisy), decisions=(answers[0], answers[1]))
    assert found.sqnr_interval.low < found.sqnr_db < found.sqnr_interval.high
    assert found.flips_percent is not None
    assert found.flips_interval is not None
    assert found.flips_interval.low < found.flips_percent < found.flips_interval.high
    # Equal texts count once.
    halves = compare(
        list(exact),
        list(noisy),
        decisions=(answers[0], answers[1]),
        text_keys=[*range(100)] * 2,
        answer_keys=[*range(100)] * 2,
    )
    assert halves.sqnr_interval.low < found.sqnr_interval.low
    assert halves.flips_interval.high > found.flips_interval.high


def test_nothing_is_known_of_the_sqnr_with_fewer_than_six_texts() -> None:
    exact = np.random.default_rng(0).normal(size=(6, 4))
    few, enough = (compare(exact[:count], exact[:count] + 0.1) for count in (5, 6))
    assert few.sqnr_interval == Interval(low=-math.inf, high=math.inf)
    assert enough.sqnr_interval.low > 0
