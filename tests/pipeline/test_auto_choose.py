"""When the target `auto` times candidates again, with times and verdicts that are given."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.pipeline.auto.choice import Candidate, Choice, Timed, candidate_reports, choose
from qdqbert.pipeline.auto.halving import Sample, rank


class Bench:
    """Candidates with given times in each ranking, and what was timed and checked."""

    def __init__(self, *rankings: str) -> None:
        """Take the times in milliseconds, such as "a1 b2", of each ranking."""
        self.times = [{each[0]: float(each[1:]) for each in row.split()} for row in rankings]
        self.timed: list[str] = []
        self.checked = ""

    def time(self, candidates: Sequence[Candidate], *, again: bool) -> list[Timed]:
        assert again == bool(self.timed)
        times = self.times[len(self.timed)]
        names = [each.folder.name for each in candidates]
        self.timed.append("".join(names))
        return [
            Timed(candidate=candidates[each.index], standing=each, precision="float32")
            for each in rank([self._timer(times[name]) for name in names])
        ]

    @staticmethod
    def _timer(milliseconds: float) -> Any:
        return lambda **texts: Sample(single_ms=2 * milliseconds, bulk_ms=milliseconds / 2)

    def choose(self, *, close: str, adjusted: Mapping[str, str] | None = None) -> Choice:
        """Choose, where the candidates in `close` are close enough to float.

        Args:
            close: Names of the candidates.
            adjusted: Names of the candidates that replace others, by their names.
        """

        def check(each: Candidate) -> tuple[Any, str]:
            name = each.folder.name
            self.checked += name
            return name, "" if name in close else f"{name} is far"

        def adjust(each: Candidate) -> Candidate | None:
            name = (adjusted or {}).get(each.folder.name)
            return None if name is None else candidate(name)

        candidates = [candidate(name) for name in self.times[0]]
        return choose(candidates, time=self.time, check=check, adjust=adjust)


def candidate(name: str) -> Candidate:
    plan: Any = types.SimpleNamespace(
        target=types.SimpleNamespace(name=name, engines=("onnxruntime",)),
        recipe=types.SimpleNamespace(name="linear"),
    )
    return Candidate(plan=plan, folder=Path(name), written=types.SimpleNamespace())  # type: ignore[arg-type]


def table(choice: Choice) -> list[tuple[str, str, float]]:
    return [
        (each.target, each.verdict, round(each.relative_time, 6))
        for each in candidate_reports(choice)
    ]


def test_nothing_is_timed_again_if_a_finalist_is_close_enough() -> None:
    bench = Bench("a5 b4 c3 d2 e1")
    choice = bench.choose(close="ca")
    assert (bench.timed, bench.checked) == (["abcde"], "edc")
    assert [each.rejection for each in choice.timed] == ["e is far", "d is far", "", "", ""]
    assert table(choice) == [
        ("e", "rejected", 1.0),
        ("d", "rejected", 2.0),
        ("c", "chosen", 3.0),
        ("b", "slower", 4.0),
        ("a", "slower", 5.0),
    ]


def test_the_others_are_timed_again_if_all_finalists_are_rejected() -> None:
    # The first ranking has the order of the last three wrong.
    bench = Bench("a2 b3 c4 d5 e6 f7", "d7 e6 f5")
    choice = bench.choose(close="def")
    assert (bench.timed, bench.checked) == (["abcdef", "def"], "abcf")
    assert table(choice) == [
        ("a", "rejected", 1.0),
        ("b", "rejected", 1.5),
        ("c", "rejected", 2.0),
        ("f", "chosen", 2.5),
        ("e", "slower", 3.0),
        ("d", "slower", 3.5),
    ]


def test_candidates_are_timed_until_none_is_left() -> None:
    # Two of eight are finalists, three of six, and then all three.
    bench = Bench("a1 b2 c3 d4 e5 f6 g7 h8", "c3 d4 e5 f6 g7 h8", "f8 g7 h6")
    choice = bench.choose(close="")
    assert bench.timed == ["abcdefgh", "cdefgh", "fgh"]
    assert bench.checked == "abcdehgf"
    assert choice.chosen is None
    assert choice.reports == tuple("abcdehgf")
    assert [time for *_, time in table(choice)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {verdict for _, verdict, _ in table(choice)} == {"rejected"}


def test_times_are_relative_to_the_fastest_candidate_of_all_rankings() -> None:
    bench = Bench("a2 b3 c4 d5", "c1 d4")
    choice = bench.choose(close="cd")
    assert table(choice) == [
        ("a", "rejected", 2.0),
        ("b", "rejected", 3.0),
        ("c", "chosen", 1.0),
        ("d", "slower", 4.0),
    ]


def test_a_candidate_closer_to_float_is_timed_with_all_that_were_not_rejected() -> None:
    bench = Bench("a1 b2 c3 d4 e5", "B6 c3 d4 e5")
    choice = bench.choose(close="Bcd", adjusted={"b": "B"})
    assert (bench.timed, bench.checked) == (["abcde", "Bcde"], "abc")
    assert table(choice) == [
        ("a", "rejected", 1.0),
        ("c", "chosen", 3.0),
        ("d", "slower", 4.0),
        ("e", "slower", 5.0),
        ("B", "slower", 6.0),
    ]
