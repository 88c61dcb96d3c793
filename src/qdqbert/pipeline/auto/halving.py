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

    def scaled(self, known: Sample, wanted: Sample) -> Sample:
        """Return the times under the conditions of another sample.

        Args:
            known: Times of another candidate under the conditions of these times.
            wanted: Times of the same candidate under the other conditions.
        """
        return Sample(
            single_ms=self.single_ms * (wanted.single_ms / known.single_ms),
            bulk_ms=self.bulk_ms * (wanted.bulk_ms / known.bulk_ms),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """Measurements of a candidate.

    Attributes:
        index: Its position among the candidates.
        sample: Its times for the texts of the last round. If it was not in this round, they are
            computed from its last round, where it is compared with a candidate of both.
    """

    index: int
    sample: Sample


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
    standings, behind = list[Standing](), list[Standing]()
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
        before, standings = standings, _standings(left, samples)
        following = sizes[number + 1] if number + 1 < len(sizes) else size
        # The fastest candidate of a round is in the next one, too.
        behind = [
            dataclasses.replace(
                each, sample=each.sample.scaled(before[0].sample, _of(before[0], standings).sample)
            )
            for each in behind
        ]
        behind = [*standings[following:], *behind]
        for each in standings[following:]:
            stop(each.index)
        left = [each.index for each in standings[:following]]
        known = [each.sample for each in standings[:following]]
    return [*standings[:following], *behind]


def _standings(left: Sequence[int], samples: Sequence[Sequence[Sample]]) -> list[Standing]:
    """Return the candidates of a round, the fastest one first."""
    fastest = min(samples, key=lambda found: statistics.median(each.mean_ms for each in found))

    def compared(found: Sequence[Sample], part: Callable[[Sample], float]) -> float:
        # A machine that slows down for a turn slows all candidates.
        ratios = (part(mine) / part(best) for mine, best in zip(found, fastest, strict=True))
        return statistics.median(ratios) * statistics.median(map(part, fastest))

    standings = [
        Standing(
            index=index,
            sample=Sample(
                single_ms=compared(found, lambda each: each.single_ms),
                bulk_ms=compared(found, lambda each: each.bulk_ms),
            ),
        )
        for index, found in zip(left, samples, strict=True)
    ]
    return sorted(standings, key=lambda each: each.sample.mean_ms)


def _of(standing: Standing, standings: Sequence[Standing]) -> Standing:
    """Return the standing of the same candidate in another round."""
    return next(each for each in standings if each.index == standing.index)
