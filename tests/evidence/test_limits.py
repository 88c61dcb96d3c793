from __future__ import annotations

import numpy as np
import pytest

from qdqbert.errors import UserInputError
from qdqbert.evidence.fidelity import Fidelity, compare
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.limits import MetricDifference, check_limits, metric_differences
from qdqbert.options import Limits
from qdqbert.tasks.task import Score, mean_percent


def fidelity(**changes: object) -> Fidelity:
    values = {
        "texts": 9,
        "sqnr_db": 30.0,
        "sqnr_interval": Interval(low=28, high=32),
        "cosine_mean": 0.99,
        "cosine_min": 0.9,
        "flips_percent": 1.0,
        "flips_interval": Interval(low=0.5, high=2),
    }
    return Fidelity(**{**values, **changes})


def difference(*, is_error: bool = False) -> MetricDifference:
    # A loss of 1 if higher is better, with an interval from a gain of 0.5 to a loss of 2.
    return MetricDifference(
        name="f1", value=-1, interval=Interval(low=-2, high=0.5), is_error=is_error
    )


def verdict_of(option: str, limit: float) -> str:
    (check,) = check_limits(Limits(**{option: limit}), fidelity(), [difference()])
    assert (check.option, check.limit) == (option, limit)
    return check.verdict


@pytest.mark.parametrize(
    ("option", "limit", "verdict"),
    [
        ("max_drop", 2, "met"),
        ("max_drop", 1.9, "not shown"),
        ("max_drop", 0, "not shown"),
        ("max_flips", 2, "met"),
        ("max_flips", 0.5, "not shown"),
        ("max_flips", 0.4, "missed"),
        ("min_sqnr", 28, "met"),
        ("min_sqnr", 32, "not shown"),
        ("min_sqnr", 33, "missed"),
        ("min_cosine", 0.9, "met"),
        ("min_cosine", 0.91, "missed"),
    ],
)
def test_a_limit_is_met_if_the_whole_interval_is_within_it(option, limit, verdict) -> None:
    assert verdict_of(option, limit) == verdict


def test_the_drop_is_a_loss_whether_higher_or_lower_metrics_are_better() -> None:
    drops = [
        check_limits(Limits(max_drop=1), fidelity(), [difference(is_error=is_error)])[0]
        for is_error in (False, True)
    ]
    assert [each.value for each in drops] == [1, -1]
    assert [(each.interval.low, each.interval.high) for each in drops] == [(-0.5, 2), (-2, 0.5)]


@pytest.mark.parametrize(
    ("option", "changes", "message"),
    [
        ("max_flips", {"flips_percent": None, "flips_interval": None}, "tasks that choose"),
        ("min_cosine", {"cosine_min": None}, "embedders only"),
    ],
)
def test_a_limit_that_does_not_apply_to_the_task_is_refused(option, changes, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        check_limits(Limits(**{option: 1}), fidelity(**changes), [difference()])
    assert caught.value.argument == option


def test_metrics_that_both_models_have_are_compared() -> None:
    rows = np.array([[1.0], [0.0], [1.0], [1.0]])
    model = [Score(name=name, rows=rows, compute=mean_percent) for name in ("f1", "mcc")]
    reference = [Score(name="f1", rows=np.ones((4, 1)), compute=mean_percent)]
    (found,) = metric_differences(model, reference)
    assert (found.name, found.value) == ("f1", -25)
    assert found.interval.low < -25 < found.interval.high == 0


def test_intervals_of_the_fidelity_contain_its_values() -> None:
    random = np.random.default_rng(0)
    exact = random.normal(size=(200, 4))
    noisy = exact + random.normal(scale=0.1, size=exact.shape)
    answers = [each.argmax(axis=1).tolist() for each in (exact, noisy)]
    found = compare(list(exact), list(noisy), decisions=(answers[0], answers[1]))
    assert found.sqnr_interval.low < found.sqnr_db < found.sqnr_interval.high
    assert found.flips_percent is not None
    assert found.flips_interval is not None
    assert found.flips_interval.low < found.flips_percent < found.flips_interval.high
