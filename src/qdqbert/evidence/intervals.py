"""Confidence intervals of measurements on a sample of examples, at 95 %."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qdqbert.tasks.task import Compute, Score

CONFIDENCE = 0.95

# Samples of a bootstrap. The ends of its interval then vary by less than a tenth of its width.
_SAMPLES = 1000
_SEED = 0
# Halvings of the interval from 0 to 1; more would not change a float64 that matters.
_BISECTIONS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """Both ends of an interval.

    Attributes:
        low: The lower end.
        high: The upper end.
    """

    low: float
    high: float


def proportion_interval(count: int, total: int) -> Interval:
    """Return the exact interval of a probability, from 0 to 1, for `count` of `total` trials.

    Source: Clopper and Pearson 1934, doi:10.1093/biomet/26.4.404.
    """
    tail = (1 - CONFIDENCE) / 2
    # The more likely a success is, the more likely are at least `count`, the less at most `count`.
    low, high = _at_least(count, total), _at_least(count + 1, total)
    return Interval(
        low=_root(lambda p: low(p) - tail) if count else 0.0,
        high=_root(lambda p: high(p) - (1 - tail)) if count < total else 1.0,
    )


def difference_interval(score: Score, reference: Score) -> Interval:
    """Return the interval of a model's metric minus a reference's, on the same examples.

    Both models are scored on random samples of the examples, drawn with replacement. Samples for
    which a metric is undefined are left out.

    Raises:
        ValueError: They have different numbers of examples.

    Source: the paired percentile bootstrap; Efron and Tibshirani 1993, An Introduction to the
    Bootstrap, chapter 13.
    """
    if len(score.rows) != len(reference.rows):
        raise ValueError(
            f"`score` and `reference` must have equal numbers of examples, got {len(score.rows)} "
            f"and {len(reference.rows)}."
        )
    width = score.rows.shape[1]

    def compute(rows: NDArray[np.float64]) -> float:
        return score.compute(rows[:, :width]) - reference.compute(rows[:, width:])

    return bootstrap_interval(np.concatenate([score.rows, reference.rows], axis=1), compute)


def bootstrap_interval(rows: NDArray[np.float64], compute: Compute) -> Interval:
    """Return the interval of a value that is computed from rows, one for each example.

    Args:
        rows: Shape `(examples, values)`.
        compute: Returns the value of some rows. Raises `ValueError` if it is undefined.

    Returns:
        The percentile interval. If the value is undefined for all samples, it has no bounds.
    """
    random = np.random.default_rng(_SEED)
    values = []
    for _ in range(_SAMPLES):
        try:
            values.append(compute(rows[random.integers(0, len(rows), len(rows))]))
        except ValueError:
            continue
    if not values:
        return Interval(low=-math.inf, high=math.inf)
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    # Samples, not means of them: an infinite SQNR has no mean.
    low, high = np.quantile(values, ends, method="inverted_cdf")
    return Interval(low=float(low), high=float(high))


def _at_least(count: int, total: int) -> Callable[[float], float]:
    """Return the probability of at least `count` successes, given the probability of one."""
    steps = np.arange(1, total + 1)
    ways = np.concatenate([[0.0], np.cumsum(np.log((total + 1 - steps) / steps))])[count:]
    found = np.arange(count, total + 1)

    def probability(p: float) -> float:
        return float(np.exp(ways + found * math.log(p) + (total - found) * math.log1p(-p)).sum())

    return probability


def _root(rising: Callable[[float], float]) -> float:
    """Return the number between 0 and 1 at which a rising function is 0, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return high
