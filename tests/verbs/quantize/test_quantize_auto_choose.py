"""When the target `auto` times candidates again, with times and verdicts that are given."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qdqbert.progress import Silent
from qdqbert.verbs.quantize.auto import run
from qdqbert.verbs.quantize.auto.halving import Sample, rank
from qdqbert.verbs.quantize.auto.run import Candidate, Choice, Timed, candidate_reports, choose
from qdqbert.verbs.quantize.measure import Measurements


class Bench:
    """Candidates with given times in each ranking, and what was timed and checked."""

    def __init__(self, *rankings: str) -> None:
        """Take the times in milliseconds, such as "a1 b2", of each ranking."""
        self.times = [{each[0]: float(each[1:]) for each in row.split()} for row in rankings]
        self.timed: list[str] = []
        self.checked = ""

    def time(self, candidates: Sequence[Candidate]) -> list[Timed]:
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

    def choose(self, monkeypatch: pytest.MonkeyPatch, *, close: str) -> Choice:
        """Choose, where the candidates in `close` are close enough to float."""

        def measure(candidate: Candidate, *others: object) -> Measurements:
            self.checked += candidate.folder.name
            reports: Any = (candidate.folder.name,)
            return Measurements(reports=reports, warnings=(), notices=())

        monkeypatch.setattr(run, "_measure", measure)
        monkeypatch.setattr(
            run, "rejection", lambda name, *others: "" if name in close else f"{name} is far"
        )
        evidence: Any = types.SimpleNamespace(ranges="calibrated")
        limits: Any = None
        candidates = [candidate(name) for name in self.times[0]]
        return choose(candidates, self.time, evidence, limits, Silent())


def candidate(name: str) -> Candidate:
    plan = types.SimpleNamespace(
        target=types.SimpleNamespace(name=name), recipe=types.SimpleNamespace(name="linear")
    )
    written: Any = types.SimpleNamespace(plan=plan)
    return Candidate(folder=Path(name), engine="onnxruntime", written=written, units=())


def table(choice: Choice) -> list[tuple[str, str, float]]:
    return [
        (each.target, each.verdict, round(each.relative_time, 6))
        for each in candidate_reports(choice)
    ]


def test_nothing_is_timed_again_if_a_finalist_is_close_enough(monkeypatch) -> None:
    bench = Bench("a5 b4 c3 d2 e1")
    choice = bench.choose(monkeypatch, close="ca")
    assert (bench.timed, bench.checked) == (["abcde"], "edc")
    assert choice.reasons == ("e is far", "d is far")
    assert table(choice) == [
        ("e", "rejected", 1.0),
        ("d", "rejected", 2.0),
        ("c", "chosen", 3.0),
        ("b", "slower", 4.0),
        ("a", "slower", 5.0),
    ]


def test_the_others_are_timed_again_if_all_finalists_are_rejected(monkeypatch) -> None:
    # The first ranking has the order of the last three wrong.
    bench = Bench("a2 b3 c4 d5 e6 f7", "d7 e6 f5")
    choice = bench.choose(monkeypatch, close="def")
    assert (bench.timed, bench.checked) == (["abcdef", "def"], "abcf")
    assert table(choice) == [
        ("a", "rejected", 1.0),
        ("b", "rejected", 1.5),
        ("c", "rejected", 2.0),
        ("f", "chosen", 2.5),
        ("e", "slower", 3.0),
        ("d", "slower", 3.5),
    ]


def test_candidates_are_timed_until_none_is_left(monkeypatch) -> None:
    # Two of eight are finalists, three of six, and then all three.
    bench = Bench("a1 b2 c3 d4 e5 f6 g7 h8", "c3 d4 e5 f6 g7 h8", "f8 g7 h6")
    choice = bench.choose(monkeypatch, close="")
    assert bench.timed == ["abcdefgh", "cdefgh", "fgh"]
    assert bench.checked == "abcdehgf"
    assert choice.chosen is None
    assert choice.measured.reports == tuple("abcdehgf")
    assert [time for *_, time in table(choice)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {verdict for _, verdict, _ in table(choice)} == {"rejected"}


def test_times_are_relative_to_the_fastest_candidate_of_all_rankings(monkeypatch) -> None:
    bench = Bench("a2 b3 c4 d5", "c1 d4")
    choice = bench.choose(monkeypatch, close="cd")
    assert table(choice) == [
        ("a", "rejected", 2.0),
        ("b", "rejected", 3.0),
        ("c", "chosen", 1.0),
        ("d", "slower", 4.0),
    ]
