"""Which graph is called the fastest, and how to run it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from qdqbert.evidence.reports import LatencyReport
from qdqbert.reporting.page import quantize_page
from qdqbert.reporting.usage import by_speed, closing_lines, usage, winner, winner_text


def timed(target, engine: str, float_ms: float, int8_ms: float):
    latency = [
        LatencyReport(
            batch=batch,
            sequence=32,
            float_ms=factor * float_ms,
            int8_ms=factor * int8_ms,
            speedup=float_ms / int8_ms,
        )
        for batch, factor in ((1, 1.0), (8, 4.0))
    ]
    return dataclasses.replace(target, target=engine, engine=engine, latency=tuple(latency))


@pytest.fixture
def report(quantize_report):
    """Three engines, the native one the fastest, and OpenVINO the best one in float."""
    (target,) = quantize_report.targets
    targets = [
        timed(target, "onnxruntime", 12.0, 6.0),
        timed(target, "openvino", 6.0, 4.0),
        timed(target, "native", 12.0, 2.0),
    ]
    return dataclasses.replace(quantize_report, targets=tuple(targets), call='model("A film.")')


def test_the_winner_is_compared_with_float_on_its_best_engine(report) -> None:
    best = winner(report)
    assert (best.name, best.reference) == ("native", "openvino")
    assert math.isclose(best.ratio, 3.0)
    assert [each.engine for each in by_speed(report)] == ["native", "openvino", "onnxruntime"]
    assert winner_text(report) == (
        "The fastest here is native: 3.00 x as fast as the float model on its best engine, "
        "openvino."
    )


def test_the_choice_of_auto_is_the_winner(quantize_report, candidates) -> None:
    report = dataclasses.replace(quantize_report, candidates=candidates, reason="It is fast.")
    best = winner(report)
    assert (best.name, best.reference, best.ratio) == ("native", "openvino", 1.25)
    assert winner_text(report) == "It is fast."


def test_the_last_lines_run_the_folder(report) -> None:
    lines = closing_lines(report)
    assert lines[1].startswith("The fastest here is native")
    assert lines[2] == "To run it (pip install qdqbert):"
    assert lines[4:] == [
        "    import qdqbert",
        "    model = qdqbert.load('out/my-int8')",
        '    print(model("A film."))',
    ]


def test_the_extra_is_that_of_the_fastest_engine(report) -> None:
    target = report.targets[1]
    only = dataclasses.replace(report, targets=(target, timed(target, "onnxruntime", 9.0, 8.0)))
    assert closing_lines(only)[2] == "To run it (pip install 'qdqbert[openvino]'):"


def test_without_timings_the_last_lines_say_how_to_measure(report) -> None:
    targets = tuple(dataclasses.replace(each, latency=()) for each in report.targets)
    untimed = dataclasses.replace(report, targets=targets)
    assert winner(untimed) is None
    assert closing_lines(untimed)[1] == (
        "No speed was measured. To measure it: `qdqbert benchmark out/my-int8`."
    )


def test_a_folder_that_was_not_written_or_that_load_does_not_run_has_no_last_lines(report) -> None:
    for changes in ({"directory": None}, {"call": None}):
        changed = dataclasses.replace(report, **changes)
        assert usage(changed) == ()
        assert closing_lines(changed) == []


def test_the_page_begins_with_the_winner_and_how_to_run_it(report) -> None:
    page = quantize_page(report)
    assert page.index("fastest: native") < page.index("How to run it") < page.index("How fast")
    assert "qdqbert serve out/my-int8" in page
    assert page.count("<details>") == 5
    # The float bars of engines that share them are shown once, in each of two shapes.
    assert page.count("<title>float on onnxruntime: 12.0 ms") == 1
