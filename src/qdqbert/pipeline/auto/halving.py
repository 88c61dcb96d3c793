"""Find the fastest of some candidates: all on few texts, the faster half on more, and so on.

Source: Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter
optimization" (arXiv:1502.07943), section 3.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

# The last round compares this many candidates.
FINALISTS = 3
# Turns of each candidate in a round.
_TURNS = 7
# Time that the slowest candidate takes for the texts of the last round: one at a time, and all at
# once. Rounds before it have half of it, a quarter and so on.
_SECONDS = 0.8
# The first round has at least so many texts. Fewer would not fill the batches of an engine.
_LEAST_SINGLE, _LEAST_BULK = 4, 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Times of a candidate, in milliseconds for each text.

    Attributes:
        single_ms: One text at a time.
        bulk_ms: Many texts at once.
    """

    single_ms: float
    bulk_ms: float

    @property
    def mean_ms(self) -> float:
        """The geometric mean of both, by which candidates are ranked."""
        return math.sqrt(self.single_ms * self.bulk_ms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """Measurements of a candidate.

    Attributes:
        index: Its position among the candidates.
        sample: Medians of the last round that it took part in.
        relative_time: Median of `Sample.mean_ms` divided by the fastest candidate's, turn by turn.
    """

    index: int
    sample: Sample
    relative_time: float


class Timer(Protocol):
    """Times a candidate."""

    def __call__(self, *, single: int, bulk: int) -> Sample:
        """Run a candidate once.

        Args:
            single: Number of texts that run one at a time.
            bulk: Number of texts that run at once.
        """
        ...


def round_sizes(count: int, finalists: int = FINALISTS) -> list[int]:
    """Return the number of candidates in each round."""
    sizes = [count]
    while sizes[-1] > finalists:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def turns(count: int, finalists: int = FINALISTS) -> int:
    """Return how often candidates are timed in all."""
    # Two of them find out how many texts the first round has.
    return 2 * count + sum(size * (1 + _TURNS) for size in round_sizes(count, finalists))


def rank(
    timers: Sequence[Timer],
    *,
    stop: Callable[[int], None] = lambda index: None,
    advance: Callable[[], None] = lambda: None,
    finalists: int = FINALISTS,
) -> list[Standing]:
    """Return all candidates, the fastest one first.

    Candidates take turns, and each has one turn for warming up in a round.

    Args:
        timers: One for each candidate.
        stop: Called with the position of a candidate that takes part in no further round.
        advance: Called after each of the `turns`.
        finalists: Number of candidates that the last round compares at most.
    """

    def turn(index: int, single: int, bulk: int) -> Sample:
        sample = timers[index](single=single, bulk=bulk)
        advance()
        return sample

    left = list(range(len(timers)))
    for _ in range(2):
        known = [turn(index, _LEAST_SINGLE, _LEAST_BULK) for index in left]
    sizes = round_sizes(len(timers), finalists)
    behind: list[Standing] = []
    for number, size in enumerate(sizes):
        milliseconds = 1000 * _SECONDS / 2 ** (len(sizes) - 1 - number)
        single = max(_LEAST_SINGLE, int(milliseconds / max(each.single_ms for each in known)))
        bulk = max(_LEAST_BULK, int(milliseconds / max(each.bulk_ms for each in known)))
        samples: list[list[Sample]] = [[] for _ in left]
        for index in left:
            turn(index, single, bulk)
        for _ in range(_TURNS):
            for index, found in zip(left, samples, strict=True):
                found.append(turn(index, single, bulk))
        standings = _standings(left, samples)
        following = sizes[number + 1] if number + 1 < len(sizes) else size
        behind = [*standings[following:], *behind]
        for each in standings[following:]:
            stop(each.index)
        left = [each.index for each in standings[:following]]
        known = [each.sample for each in standings[:following]]
    return [*standings[:following], *behind]


def _standings(left: Sequence[int], samples: Sequence[Sequence[Sample]]) -> list[Standing]:
    """Return the candidates of a round, the fastest one first."""
    fastest = min(samples, key=lambda found: statistics.median(each.mean_ms for each in found))
    standings = [
        Standing(
            index=index,
            sample=Sample(
                single_ms=statistics.median(each.single_ms for each in found),
                bulk_ms=statistics.median(each.bulk_ms for each in found),
            ),
            # A machine that slows down for a turn slows all candidates.
            relative_time=statistics.median(
                mine.mean_ms / best.mean_ms for mine, best in zip(found, fastest, strict=True)
            ),
        )
        for index, found in zip(left, samples, strict=True)
    ]
    return sorted(standings, key=lambda each: each.relative_time)
