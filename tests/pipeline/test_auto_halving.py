"""Successive halving, with times that are given instead of measured."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.pipeline.auto.halving import Sample, rank, round_sizes, turns


class Clock:
    """Timers with known times, and a list of all turns."""

    def __init__(self, times: list[tuple[float, float]]) -> None:
        self.turns: list[tuple[int, int, int]] = []
        self.stopped: list[int] = []
        self.steps = 0
        self.timers = [self._timer(index, *each) for index, each in enumerate(times)]

    def _timer(self, index, single_ms, bulk_ms):
        def timer(*, single: int, bulk: int) -> Sample:
            self.turns.append((index, single, bulk))
            return Sample(single_ms=single_ms, bulk_ms=bulk_ms)

        return timer

    def advance(self) -> None:
        self.steps += 1

    def rank(self, **options):
        return rank(self.timers, stop=self.stopped.append, advance=self.advance, **options)


def test_candidates_are_ranked_by_the_geometric_mean_of_both_times() -> None:
    # 3, 2 and 4: the arithmetic means would be 5, 2 and 4.
    clock = Clock([(9.0, 1.0), (2.0, 2.0), (4.0, 4.0)])
    found = clock.rank()
    assert [each.index for each in found] == [1, 0, 2]
    assert [each.sample.mean_ms for each in found] == pytest.approx([2.0, 3.0, 4.0])
    assert found[1].sample == Sample(single_ms=9.0, bulk_ms=1.0)


def test_each_round_has_the_faster_half_and_more_texts() -> None:
    times = [(index + 1.0, index + 1.0) for index in reversed(range(8))]
    clock = Clock(times)
    found = clock.rank()
    assert round_sizes(8) == [8, 4, 2]
    assert [each.index for each in found] == list(reversed(range(8)))
    # Half is stopped after the first round, a quarter after the second.
    assert set(clock.stopped[:4]) == {0, 1, 2, 3}
    assert set(clock.stopped[4:]) == {4, 5}
    asked = [(single, bulk) for _, single, bulk in clock.turns]
    assert len(set(asked)) == 4
    assert asked == sorted(asked)
    assert {index for index, *_ in clock.turns[-2:]} == {6, 7}


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
    assert [each.index for each in found] == [1, 0]
    assert found[1].sample.mean_ms / found[0].sample.mean_ms == pytest.approx(1.02)


def test_times_of_earlier_rounds_are_computed_for_the_texts_of_the_last_one() -> None:
    def timer(factor: float):
        # The time of a text depends on how many there are.
        def run(*, single: int, bulk: int) -> Sample:
            return Sample(single_ms=factor * single, bulk_ms=factor * math.sqrt(bulk))

        return run

    found = rank([timer(1e-3 * (index + 1)) for index in range(8)])
    first = found[0].sample
    assert [each.sample.single_ms / first.single_ms for each in found] == pytest.approx(range(1, 9))
    assert [each.sample.bulk_ms / first.bulk_ms for each in found] == pytest.approx(range(1, 9))


def test_all_candidates_can_be_finalists() -> None:
    clock = Clock([(index + 1.0, 1.0) for index in range(7)])
    found = clock.rank(finalists=7)
    assert clock.stopped == []
    assert [each.index for each in found] == list(range(7))
    assert clock.steps == turns(7, 7)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=1, max_size=13, unique=True
    )
)
def test_the_fastest_is_found_and_all_are_ranked(times) -> None:
    clock = Clock(times)
    found = clock.rank()
    assert sorted(each.index for each in found) == list(range(len(times)))
    means = [math.sqrt(single * bulk) for single, bulk in times]
    assert means[found[0].index] == pytest.approx(min(means))
    assert clock.steps == len(clock.turns) == turns(len(times))
