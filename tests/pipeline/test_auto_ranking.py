"""Rankings, with times that are given instead of measured."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.pipeline.auto.ranking import Sample, rank, turns


class Clock:
    """Timers with known times, and a list of all turns."""

    def __init__(self, times: list[tuple[float, float]]) -> None:
        self.turns: list[tuple[int, int, int]] = []
        self.steps = 0
        self.timers = [self._timer(index, *each) for index, each in enumerate(times)]

    def _timer(self, index, single_ms, bulk_ms):
        def timer(*, single: int, bulk: int) -> Sample:
            self.turns.append((index, single, bulk))
            return Sample(single_ms=single_ms, bulk_ms=bulk_ms)

        return timer

    def advance(self) -> None:
        self.steps += 1

    def rank(self):
        return rank(self.timers, advance=self.advance)


def test_candidates_are_ranked_by_the_geometric_mean_of_both_times() -> None:
    # 3, 2 and 4: the arithmetic means would be 5, 2 and 4.
    clock = Clock([(9.0, 1.0), (2.0, 2.0), (4.0, 4.0)])
    found = clock.rank()
    assert [index for index, _ in found] == [1, 0, 2]
    assert [sample.mean_ms for _, sample in found] == pytest.approx([2.0, 3.0, 4.0])
    assert found[1][1] == Sample(single_ms=9.0, bulk_ms=1.0)


def test_no_candidate_has_two_turns_in_a_row() -> None:
    clock = Clock([(1.0, 2.0)] * 6)
    clock.rank()
    order = [index for index, *_ in clock.turns]
    assert all(first != second for first, second in itertools.pairwise(order))


def test_slow_models_are_timed_on_the_fewest_texts_only() -> None:
    clock = Clock([(1e6, 1e6), (2e6, 2e6)])
    clock.rank()
    assert {(single, bulk) for _, single, bulk in clock.turns} == {(4, 32)}


def test_a_slow_moment_of_the_machine_changes_no_ratio() -> None:
    calls = [0]

    def timer(factor: float):
        def run(*, single: int, bulk: int) -> Sample:
            # Both candidates run once in a turn; a third of the turns takes ten times as long.
            slow = 10.0 if (calls[0] // 2) % 3 == 0 else 1.0
            calls[0] += 1
            return Sample(single_ms=factor * slow, bulk_ms=factor * slow)

        return run

    found = rank([timer(1.02), timer(1.0)])
    (first, best), (second, other) = found
    assert (first, second) == (1, 0)
    assert other.mean_ms / best.mean_ms == pytest.approx(1.02)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=13, unique=True
    )
)
def test_the_fastest_is_found_and_all_are_ranked(times) -> None:
    clock = Clock(times)
    found = clock.rank()
    assert sorted(index for index, _ in found) == list(range(len(times)))
    means = [math.sqrt(single * bulk) for single, bulk in times]
    assert means[found[0][0]] == pytest.approx(min(means))
    assert clock.steps == len(clock.turns) == turns(len(times))
