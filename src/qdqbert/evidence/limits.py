"""Compare measurements with the limits that the user set."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Literal

from qdqbert.errors import UserInputError
from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.intervals import Interval, difference_interval
from qdqbert.options import Limits
from qdqbert.tasks.task import Score

Verdict = Literal["met", "missed", "not shown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricDifference:
    """The metric of a model, minus the reference's on the same examples.

    Attributes:
        name: Name of the metric.
        value: The difference, in the unit of the metric.
        interval: Its interval.
        is_error: Whether lower metrics are better.
    """

    name: str
    value: float
    interval: Interval
    is_error: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitCheck:
    """A limit and the measurement.

    Attributes:
        option: Name of the option that set the limit.
        limit: The limit.
        value: The measurement.
        interval: Its interval.
        verdict: `met` if the whole interval is within the limit, `missed` if nothing of it is, and
            `not shown` if there are too few examples to tell.
    """

    option: str
    limit: float
    value: float
    interval: Interval
    verdict: Verdict


def metric_differences(
    scores: Sequence[Score], references: Sequence[Score]
) -> tuple[MetricDifference, ...]:
    """Return the difference of each metric that both models have, the main one first."""
    known = {each.name: each for each in references}
    return tuple(
        MetricDifference(
            name=each.name,
            value=each.metric().value - known[each.name].metric().value,
            interval=difference_interval(each, known[each.name]),
            is_error=each.is_error,
        )
        for each in scores
        if each.name in known
    )


def check_limits_apply(limits: Limits, *, is_embedding: bool) -> None:
    """Refuse a limit of another task, before anything is measured.

    Args:
        limits: The limits.
        is_embedding: Whether the models are embedders, which choose no answers.

    Raises:
        UserInputError: A limit does not apply.
    """
    if limits.max_flips is not None and is_embedding:
        raise _not_applicable("max_flips", limits.max_flips, "tasks that choose an answer")
    if limits.min_cosine is not None and not is_embedding:
        raise _not_applicable("min_cosine", limits.min_cosine, "embedders")


def check_limits(
    limits: Limits, fidelity: Fidelity, differences: Sequence[MetricDifference]
) -> tuple[LimitCheck, ...]:
    """Return a check for each limit that was set.

    Raises:
        UserInputError: A limit does not apply to the task.
    """
    checks = []
    if limits.max_drop is not None:
        value, drop = _drop(differences[0])
        checks.append(_check("max_drop", limits.max_drop, value, drop, at_most=True))
    if limits.max_flips is not None:
        if fidelity.flips_percent is None or fidelity.flips_interval is None:
            raise _not_applicable("max_flips", limits.max_flips, "tasks that choose an answer")
        value, interval = fidelity.flips_percent, fidelity.flips_interval
        checks.append(_check("max_flips", limits.max_flips, value, interval, at_most=True))
    if limits.min_sqnr is not None:
        value, interval = fidelity.sqnr_db, fidelity.sqnr_interval
        checks.append(_check("min_sqnr", limits.min_sqnr, value, interval, at_most=False))
    if limits.min_cosine is not None:
        if fidelity.cosine_min is None:
            raise _not_applicable("min_cosine", limits.min_cosine, "embedders")
        # The worst of these texts, not of all texts, which no sample can bound.
        worst = Interval(low=fidelity.cosine_min, high=fidelity.cosine_min)
        checks.append(
            _check("min_cosine", limits.min_cosine, fidelity.cosine_min, worst, at_most=False)
        )
    return tuple(checks)


def _drop(difference: MetricDifference) -> tuple[float, Interval]:
    """Return the loss of a metric against the reference's, and its interval."""
    value, interval = difference.value, difference.interval
    if difference.is_error:
        return value, interval
    # 0 - x, as -x would be printed as -0.
    return 0 - value, Interval(low=0 - interval.high, high=0 - interval.low)


def _check(
    option: str, limit: float, value: float, interval: Interval, *, at_most: bool
) -> LimitCheck:
    within = operator.le if at_most else operator.ge
    ends = [within(end, limit) for end in (interval.low, interval.high)]
    verdict: Verdict = "met" if all(ends) else "not shown" if any(ends) else "missed"
    return LimitCheck(option=option, limit=limit, value=value, interval=interval, verdict=verdict)


def _not_applicable(option: str, limit: float, what: str) -> UserInputError:
    return UserInputError(
        f"`{option}={limit:g}` applies to {what} only. Leave it out.", argument=option
    )
