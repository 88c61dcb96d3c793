"""When the target `auto` times candidates again, with times and verdicts that are given."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from qdqbert.pipeline.auto.choice import (
    TOO_SLOW,
    Candidate,
    Choice,
    Timed,
    candidate_reports,
    choose,
)
from qdqbert.pipeline.auto.ranking import Sample, rank


class Bench:
    """Candidates with given times in each ranking, and what was timed, checked and adjusted."""

    def __init__(self, *rankings: str) -> None:
        """Take the times in milliseconds, such as "a1 b2", of each ranking."""
        self.times = [{each[0]: float(each[1:]) for each in row.split()} for row in rankings]
        self.timed: list[str] = []
        self.checked = ""
        self.adjusted: dict[str, float] = {}

    def time(self, candidates: Sequence[Candidate], *, again: bool) -> list[Timed]:
        assert again == bool(self.timed)
        times = self.times[len(self.timed)]
        names = [each.folder.name for each in candidates]
        self.timed.append("".join(names))
        return [
            Timed(candidate=candidates[index], sample=sample, precision="float32")
            for index, sample in rank([self.timer(times[name]) for name in names])
        ]

    def timer(self, milliseconds: float) -> Any:
        return lambda **texts: Sample(single_ms=2 * milliseconds, bulk_ms=milliseconds / 2)

    def choose(self, *, close: str, adjusted: Mapping[str, str] | None = None) -> Choice:
        """Choose, where the candidates in `close` are close enough to float.

        Args:
            close: Names of the candidates. "f" is the float model.
            adjusted: Names of the candidates that replace others, by their names.
        """

        def check(each: Candidate) -> tuple[Any, str]:
            name = each.folder.name
            self.checked += name
            return name, "" if name in close else f"{name} is far"

        def adjust(each: Candidate, most_float: float) -> Candidate | str:
            self.adjusted[each.folder.name] = round(most_float, 6)
            name = (adjusted or {}).get(each.folder.name, "it is slow")
            return candidate(name) if len(name) == 1 else name

        candidates = [candidate(name) for name in self.times[0]]
        return choose(candidates, time=self.time, check=check, adjust=adjust)


def candidate(name: str) -> Candidate:
    plan: Any = types.SimpleNamespace(
        target=types.SimpleNamespace(
            name=name,
            engines=("onnxruntime",),
            quantizes="nothing" if name == "f" else "any_sites",
        ),
        recipe=types.SimpleNamespace(name="linear"),
        codes="INT8",
    )
    return Candidate(plan=plan, folder=Path(name), written=types.SimpleNamespace())  # type: ignore[arg-type]


def table(choice: Choice) -> list[tuple[str, str, float]]:
    return [
        (each.target, each.verdict, round(each.relative_time, 6))
        for each in candidate_reports(choice)
    ]


def test_the_fastest_that_is_close_enough_is_chosen() -> None:
    bench = Bench("a5 b4 c3 d2 e1")
    choice = bench.choose(close="ca")
    assert (bench.timed, bench.checked) == (["abcde"], "edc")
    assert [each.rejection for each in choice.timed[2:]] == ["", "", ""]
    assert table(choice) == [
        ("e", "rejected", 1.0),
        ("d", "rejected", 2.0),
        ("c", "chosen", 3.0),
        ("b", "slower", 4.0),
        ("a", "slower", 5.0),
    ]


def test_all_are_checked_if_none_is_close_enough() -> None:
    bench = Bench("a1 b2 c3 d4 e5")
    choice = bench.choose(close="")
    assert bench.checked == "abcde"
    assert choice.chosen is None
    assert choice.reports == tuple("abcde")
    assert [time for *_, time in table(choice)] == [1, 2, 3, 4, 5]
    assert {verdict for _, verdict, _ in table(choice)} == {"rejected"}
    assert bench.adjusted == {}


def test_a_faster_candidate_that_is_closer_with_layers_in_float_is_chosen() -> None:
    bench = Bench("a1 b2 c3 f5", "c6 A3")
    choice = bench.choose(close="Acf", adjusted={"a": "A"})
    assert table(choice) == [
        ("A", "chosen", 1.0),
        ("b", "rejected", 1.333333),
        ("c", "slower", 2.0),
        ("f", "slower", 3.333333),
    ]
    # Float on this engine takes 4 ms more, of which less than 2 ms are allowed.
    assert bench.adjusted == {"a": round((3 / 1.05 - 1) / 4, 6)}


@pytest.mark.parametrize(
    ("rankings", "adjusted", "checked", "words"),
    [
        # It is too slow with layers in float.
        (("a1 b2 f4", "b2 A2.5"), {"a": "A"}, "ab", f"a is far; {TOO_SLOW}"),
        # It is fast enough, and still too far from float.
        (("a1 b2 f4", "b2 B1.5"), {"a": "B"}, "abB", "a is far; with layers in float, B is far"),
        # There is none.
        (("a1 b2 f4",), {}, "ab", "a is far; it is slow"),
        # Nothing is known about layers in float.
        (("a1 b2 f4",), {"a": ""}, "ab", "a is far"),
    ],
)
def test_a_faster_candidate_stays_rejected_if_layers_in_float_do_not_help(
    rankings, adjusted, checked, words
) -> None:
    bench = Bench(*rankings)
    choice = bench.choose(close="bA", adjusted=adjusted)
    assert bench.checked == checked
    assert table(choice) == [
        ("a", "rejected", 1.0),
        ("b", "chosen", 2.0),
        ("f", "slower", 4.0),
    ]
    assert choice.timed[0].rejection == words


@pytest.mark.parametrize(
    ("times", "adjusted"),
    [
        # Slower than the chosen one as it is.
        ("a1 b2 f4", {}),
        # Faster by less than rankings differ.
        ("b1 a1.04 f4", {}),
        # Twice as fast, of three times as fast as float.
        ("b1 a2 f3", {"b": round((2 / 1.05 - 1) / 2, 6)}),
        # The chosen one is the float model: almost all layers can be in float.
        ("b1 f2 a3", {"b": round(2 / 1.05 - 1, 6)}),
    ],
)
def test_limits_are_met_for_candidates_that_can_win(times, adjusted) -> None:
    bench = Bench(times)
    bench.choose(close="af")
    assert bench.adjusted == adjusted
