"""Rank candidates by their speed."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

# Turns of each candidate that count.
_TURNS = 7
# Time that the slowest candidate takes for its texts: one at a time, and all at once.
_SECONDS = 0.8
# There are at least so many texts. Fewer would not fill the batches of an engine.
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


class Timer(Protocol):
    """Times a candidate."""

    def __call__(self, *, single: int, bulk: int) -> Sample:
        """Run a candidate once.

        `single` texts run one at a time, and then `bulk` texts at once.
        """


def turns(count: int) -> int:
    """Return how often candidates are timed in all."""
    # Two turns find out how many texts there are, and one is for warming up with so many.
    return count * (2 + 1 + _TURNS)


def rank(
    timers: Sequence[Timer], *, advance: Callable[[], None] = lambda: None
) -> list[tuple[int, Sample]]:
    """Return the positions of all candidates with their times, the fastest one first.

    They take turns, and `advance` is called after each of the `turns`.
    """

    def turn(single: int, bulk: int) -> list[Sample]:
        found = []
        for timer in timers:
            found.append(timer(single=single, bulk=bulk))
            advance()
        return found

    for _ in range(2):
        known = turn(_LEAST_SINGLE, _LEAST_BULK)
    single = max(_LEAST_SINGLE, int(1000 * _SECONDS / max(each.single_ms for each in known)))
    bulk = max(_LEAST_BULK, int(1000 * _SECONDS / max(each.bulk_ms for each in known)))
    turn(single, bulk)
    samples = list(zip(*(turn(single, bulk) for _ in range(_TURNS)), strict=True))
    fastest = min(samples, key=lambda found: statistics.median(each.mean_ms for each in found))

    def compared(found: Sequence[Sample], part: Callable[[Sample], float]) -> float:
        # A machine that slows down for a turn slows all candidates.
        ratios = (part(mine) / part(best) for mine, best in zip(found, fastest, strict=True))
        return statistics.median(ratios) * statistics.median(map(part, fastest))

    ranked = [
        Sample(
            single_ms=compared(found, lambda each: each.single_ms),
            bulk_ms=compared(found, lambda each: each.bulk_ms),
        )
        for found in samples
    ]
    return sorted(enumerate(ranked), key=lambda each: each[1].mean_ms)
