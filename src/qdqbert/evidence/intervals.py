"""Confidence intervals of measurements on a sample of examples, at 95 %."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.tasks.task import Compute, Extremes, Rows, Score

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2

# Most examples that can be asked for, as a multiple of those that are there, and the precision.
_MOST_TIMES = 1e5
_STEP = 1.02
# Samples of a bootstrap. The ends of its interval then vary by less than a tenth of its width.
_SAMPLES = 1000
_SEED = 0
# Weights that are kept in memory.
_VALUES_AT_ONCE = 2**22
# Halvings of the interval from 0 to 1; more would not change a float64 that matters.
_BISECTIONS = 50
# Relative precision of probabilities.
_PRECISION = 1e-14


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
    # The more likely a success is, the more likely are at least `count`, the less at most `count`.
    low, high = _at_least(count, total), _at_least(count + 1, total)
    return Interval(
        low=_root(lambda p: low(p) - _TAIL) if count else 0.0,
        high=_root(lambda p: high(p) - (1 - _TAIL)) if count < total else 1.0,
    )


def fewest_trials(share: float) -> int:
    """Return how many trials without a success show that its probability is at most a share.

    Billions for a share of 0, which no number of them shows.
    """
    share = min(max(share, 1e-9), 1 - _TAIL)
    return math.ceil(math.log(_TAIL) / math.log1p(-share))


def share_interval(
    counts: NDArray[np.float64], keys: Sequence[Hashable], *, times: float = 1.0
) -> Interval:
    """Return the interval of a share of decisions, from 0 to 1.

    Decisions of a text depend on each other, and those of equal texts are the same. So they count
    as fewer decisions. Where each text has one, the interval is `proportion_interval`.

    Args:
        counts: How many decisions of each text count, and how many it has. Shape `(texts, 2)`.
        keys: A key for each text; equal texts have equal ones.
        times: Return the interval that so many times as many texts would have.

    Source: Korn and Graubard 1998, Confidence intervals for proportions with small expected number
    of positive counts estimated from survey data, Survey Methodology 24(2).
    """
    units, distinct = np.zeros((len(counts), 2)), 0.0
    for indices in _texts(keys):
        units[indices[0]] = counts[indices].sum(axis=0)
        distinct += counts[indices[0], 1]
    found, total = units.sum(axis=0)
    share = found / total if total else 0.0
    variance = np.square(units[:, 0] - share * units[:, 1]).sum() / max(total, 1) ** 2
    effective = times * min(distinct, share * (1 - share) / variance if variance else distinct)
    # Whole numbers, so that the interval is not too narrow. Sums of floats are not exact.
    trials, successes = math.floor(effective + 1e-6), share * effective
    return Interval(
        low=proportion_interval(math.floor(successes + 1e-6), trials).low,
        high=proportion_interval(min(math.ceil(successes - 1e-6), trials), trials).high,
    )


def difference_interval(
    score: Score, reference: Score, keys: Sequence[Hashable], *, times: float = 1.0
) -> Interval:
    """Return the interval of a model's metric minus a reference's, on the same examples.

    Args:
        score: The model's results.
        reference: The reference's.
        keys: A key for each row; rows of equal texts have equal ones.
        times: Return the interval that so many times as many examples would have.

    Raises:
        ValueError: They have different numbers of examples.
    """
    if len(score.rows) != len(reference.rows):
        raise ValueError(
            f"`score` and `reference` must have equal numbers of examples, got {len(score.rows)} "
            f"and {len(reference.rows)}."
        )
    width = score.rows.shape[1]

    def compute(rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        ours = score.compute(rows[:, :width], weights)
        return ours - reference.compute(rows[:, width:], weights)

    # Examples with equal labels for both, and outputs as far apart as those of either.
    low, high = score.extremes(np.concatenate([score.rows, reference.rows]))
    rows, lowest, highest = (
        np.concatenate(sides, axis=-1)
        for sides in ((score.rows, reference.rows), (low, high), (high, low))
    )
    return bootstrap_interval(rows, compute, (lowest, highest), keys, times=times)


def bootstrap_interval(
    rows: Rows,
    compute: Compute,
    extremes: Extremes,
    keys: Sequence[Hashable],
    *,
    times: float = 1.0,
) -> Interval:
    """Return the interval of a value that is computed from rows, one for each example.

    The rows get random weights, as if other examples of the same kind had been drawn. One more
    example is drawn with them. Its row is an extreme one: it stands for examples of which none is
    among the rows. For rows of zeros and ones and their mean, the interval is
    `proportion_interval`. So it has a width, even if all rows are equal.

    Args:
        rows: Shape `(examples, values)`.
        compute: Returns the values of rows for weights of them, `(samples, examples)`.
        extremes: Rows that make the value as low, and as high, as they can, `(kinds, examples,
            values)` each. One of the examples of the kind that changes it most is drawn.
        keys: A key for each row. Rows with equal ones, such as those of equal texts, are drawn
            together, so that they count once.
        times: Return the interval that so many times as many examples would have.

    Source: the Bayesian bootstrap, Rubin 1981, doi:10.1214/aos/1176345338; with one more row,
    Gaffke 2005, Three test statistics for a nonparametric one-sided hypothesis on the mean of a
    nonnegative variable, Mathematical Methods of Statistics 14(4).
    """
    texts: dict[bytes, list[list[int]]] = {}
    for indices in _texts(keys):
        texts.setdefault(rows[indices].tobytes(), []).append(indices)
    # The sum of the weights of equal rows is drawn at once.
    kept = [same[0] for same in texts.values()]
    counts = times * np.array([len(same) for same in texts.values()])
    owners = np.repeat(np.arange(len(kept)), [len(indices) for indices in kept])
    random = np.random.default_rng(_SEED)
    # The weight of one more example, by its quantiles, in any order.
    extra = -np.log1p(-(random.permutation(_SAMPLES) + 0.5) / _SAMPLES)
    extra *= len(rows) / len(set(keys))
    drawn = np.concatenate([rows[np.concatenate(kept)], rows[:1]])

    def values(extreme: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn[-1] = extreme
        return compute(drawn, weights)

    heavy = np.append(counts[owners], np.quantile(extra, 1 - _TAIL))[None]
    worst = [
        choose(kinds, key=lambda kind: values(kind[len(kind) // 2], heavy)[0])
        for choose, kinds in zip((min, max), extremes, strict=True)
    ]
    found = np.empty((2, _SAMPLES))
    at_once = max(1, _VALUES_AT_ONCE // len(drawn))
    for first in range(0, _SAMPLES, at_once):
        some = slice(first, min(first + at_once, _SAMPLES))
        weights, places = np.empty((some.stop - first, len(drawn))), np.empty(some.stop - first)
        for index, weight in enumerate(extra[some]):
            weights[index, :-1], weights[index, -1] = random.standard_gamma(counts)[owners], weight
            places[index] = random.random()
        for end, kind in zip(found, worst, strict=True):
            chosen = kind[(places * len(kind)).astype(np.int64)]
            # Samples with the same extreme row are computed together.
            distinct, group = np.unique(chosen, axis=0, return_inverse=True)
            for number, extreme in enumerate(distinct):
                same = group.ravel() == number
                end[some][same] = values(extreme, weights[same])
    # Samples, not means of them: an infinite SQNR has no mean.
    low = np.quantile(found[0], _TAIL, method="lower")
    high = np.quantile(found[1], 1 - _TAIL, method="higher")
    return Interval(low=float(low), high=float(high))


def times_needed(is_shown: Callable[[float], bool]) -> float | None:
    """Return how many times as many examples are needed, to two digits; `None` if it is too many.

    `is_shown` says whether so many times as many examples show something.
    """
    low, high = 1.0, 2.0
    while not is_shown(high):
        low, high = high, 2 * high
        if high > _MOST_TIMES:
            return None
    while high / low > _STEP:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_shown(middle) else (middle, high)
    return high


def joined_keys(*sides: Sequence[Hashable]) -> list[int]:
    """Return one key for each text from several, equal if one of these is.

    Texts also get equal keys if both have one in common with a third.
    """
    found = list(range(len(sides[0])))
    while True:
        before = found
        for keys in sides:
            lowest: dict[Hashable, int] = {}
            for key, number in zip(keys, found, strict=True):
                lowest[key] = min(number, lowest.get(key, number))
            found = [lowest[key] for key in keys]
        if found == before:
            return found


def _texts(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the indices of the rows of each text."""
    found: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        found.setdefault(key, []).append(index)
    return list(found.values())


def _at_least(count: int, total: int) -> Callable[[float], float]:
    """Return the probability of at least `count` successes, given the probability of one."""
    return lambda p: _beta(p, count, total - count + 1)


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by a continued fraction.

    Source: Abramowitz and Stegun 1964, Handbook of Mathematical Functions, 26.5.8, evaluated as in
    Thompson and Barnett 1986, doi:10.1016/0021-9991(86)90046-X.
    """
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    d = 1 / (1 - (a + b) * x / (a + 1))
    c, found, m = 1.0, d, 0
    change = 0.0
    while abs(change - 1) > _PRECISION:
        m += 1
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            change *= c * d
        found *= change
    return math.exp(log_front) * found / a


def _root(rising: Callable[[float], float]) -> float:
    """Return the number between 0 and 1 at which a rising function is 0, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return high
