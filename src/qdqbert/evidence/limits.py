"""Compare measurements with the limits that the user set."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from qdqbert.common.errors import UserInputError
from qdqbert.common.options.limits import Limits
from qdqbert.evidence.fidelity import Keys
from qdqbert.evidence.intervals import Interval, difference_interval, times_needed
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
        examples_needed: How many examples would show that it is met, if others of the same kind
            give the same value; rounded up to two digits. `None` if it is met or missed, or if no
            number would.
    """

    option: str
    limit: float
    value: float
    interval: Interval
    verdict: Verdict
    examples_needed: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a limit is compared with.

    Attributes:
        value: The value on all examples.
        interval_at: Returns the interval that so many times as many examples would have.
        examples: Number of different examples.
    """

    value: float
    interval_at: Callable[[float], Interval]
    examples: int

    @functools.cached_property
    def interval(self) -> Interval:
        """The interval of the value."""
        return self.interval_at(1.0)


def metric_differences(
    scores: Sequence[Score], references: Sequence[Score], keys: Callable[[Score], Keys]
) -> tuple[MetricDifference, ...]:
    """Return the difference of each metric that both models have, the main one first.

    `keys` returns a key for each row of a score; equal texts have equal ones.
    """
    known = {each.name: each for each in references}
    return tuple(
        MetricDifference(
            name=each.name,
            value=each.metric().value - known[each.name].metric().value,
            interval=difference_interval(each, known[each.name], keys(each)),
            is_error=each.is_error,
        )
        for each in scores
        if each.name in known
    )


def check_limits_apply(limits: Limits, *, is_embedding: bool) -> None:
    """Refuse a limit of another task, before anything is measured.

    Embedders choose no answers.
    """
    if limits.max_flips is not None and is_embedding:
        raise _not_applicable("max_flips", limits.max_flips)
    if limits.min_cosine is not None and not is_embedding:
        raise _not_applicable("min_cosine", limits.min_cosine)


def check_limits(
    limits: Limits,
    measure: Mapping[str, Callable[[], Measurement | None]],
    *,
    counts_examples: bool = True,
) -> tuple[LimitCheck, ...]:
    """Return a check for each limit that was set.

    Args:
        limits: The limits.
        measure: Measures what a limit is for, by the name of its option; `None` if the task has no
            such thing. `max_drop` is for the loss, whether higher or lower metrics are better.
        counts_examples: Whether to find out how many examples would show a limit that is not shown.

    Raises:
        UserInputError: A limit does not apply to the task.
    """
    checks = []
    for option, limit in dataclasses.asdict(limits).items():
        if limit is None:
            continue
        measured = measure[option]()
        if measured is None:
            raise _not_applicable(option, limit)
        checks.append(_check(option, limit, measured, counts_examples=counts_examples))
    return tuple(checks)


def loss(score: Score, reference: Score, keys: Keys) -> Measurement:
    """Return the loss of a metric against the reference's."""
    value = score.metric().value - reference.metric().value

    def interval_at(times: float) -> Interval:
        found = difference_interval(score, reference, keys, times=times)
        # 0 - x, as -x would be printed as -0.
        return found if score.is_error else Interval(low=0 - found.high, high=0 - found.low)

    return Measurement(
        value=value if score.is_error else 0 - value,
        interval_at=interval_at,
        examples=len(set(keys)),
    )


def _check(
    option: str, limit: float, measured: Measurement, *, counts_examples: bool
) -> LimitCheck:
    within = operator.le if option.startswith("max") else operator.ge

    def ends(interval: Interval) -> list[bool]:
        return [within(interval.low, limit), within(interval.high, limit)]

    found, needed = ends(measured.interval), None
    verdict: Verdict = "met" if all(found) else "not shown" if any(found) else "missed"
    if verdict == "not shown" and counts_examples and within(measured.value, limit):
        times = times_needed(lambda times: all(ends(measured.interval_at(times))))
        needed = None if times is None else _rounded_up(times * measured.examples)
    return LimitCheck(
        option=option,
        limit=limit,
        value=measured.value,
        interval=measured.interval,
        verdict=verdict,
        examples_needed=needed,
    )


def _rounded_up(count: float) -> int:
    """Return a count with two digits: 1234 → 1300."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return int(math.ceil(count / unit) * unit)


_APPLIES_TO = {"max_flips": "tasks that choose an answer", "min_cosine": "embedders"}


def _not_applicable(option: str, limit: float) -> UserInputError:
    return UserInputError(
        f"`{option}={limit:g}` applies to {_APPLIES_TO[option]} only. Leave it out.",
        argument=option,
    )
