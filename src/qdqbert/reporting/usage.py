"""Which graph of a report is the fastest, and how to run it.

The command line imports this module before it needs a model, so it imports no heavy library.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qdqbert.reporting.facts import graph_name

if TYPE_CHECKING:
    from qdqbert.evidence.reports import QuantizeReport, TargetReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class Winner:
    """The fastest graph of a report.

    Attributes:
        name: Its name.
        engine: Engine that runs it.
        ratio: How many times as fast it is as the float model on its best engine; `None` if the
            float model was not timed.
        reference: The best engine of the float model.
    """

    name: str
    engine: str
    ratio: float | None
    reference: str


def winner(report: QuantizeReport) -> Winner | None:
    """Return the fastest graph, by the geometric mean over the shapes; `None` without timings."""
    if report.candidates:
        return _chosen(report)
    timed = [each for each in by_speed(report) if each.latency]
    if not timed:
        return None
    best, floats = timed[0], _float_ms(report)
    reference = min(floats, key=floats.__getitem__)
    return Winner(
        name=graph_name(best),
        engine=best.engine,
        ratio=floats[reference] / _int8_ms(best),
        reference=reference,
    )


def by_speed(report: QuantizeReport) -> tuple[TargetReport, ...]:
    """Return the graphs with the fastest one first, and those that were not timed last."""
    return tuple(sorted(report.targets, key=_int8_ms))


def winner_text(report: QuantizeReport) -> str:
    """Say which graph is the fastest and by how much, or how to measure it."""
    best = winner(report)
    if best is None:
        measure = f": `qdqbert benchmark {report.directory}`" if report.directory else ""
        return f"No speed was measured. To measure it{measure}."
    if report.candidates and report.reason:
        return report.reason
    return (
        f"The fastest here is {best.name}: {best.ratio:.2f} x as fast as the float model on its "
        f"best engine, {best.reference}."
    )


def package(report: QuantizeReport) -> str:
    """Return the `pip install` argument of the folder: with the extra of its fastest engine."""
    best = winner(report)
    engines = {each.engine for each in report.targets} if best is None else {best.engine}
    return "'qdqbert[openvino]'" if engines == {"openvino"} else "qdqbert"


def usage(report: QuantizeReport) -> tuple[str, ...]:
    """Return the lines of Python that run the folder; none if `load` does not run it."""
    if report.directory is None or report.call is None:
        return ()
    return (
        "import qdqbert",
        f"model = qdqbert.load({report.directory!a})",
        f"print({report.call})",
    )


def closing_lines(report: QuantizeReport) -> list[str]:
    """Return the last lines of the command: the winner, and how to run it."""
    lines = usage(report)
    if not lines:
        return []
    run = f"To run it (pip install {package(report)}):"
    return ["", winner_text(report), run, "", *(f"    {line}" for line in lines)]


def _chosen(report: QuantizeReport) -> Winner | None:
    """Return the choice of the target `auto`."""
    chosen = next((each for each in report.candidates if each.verdict == "chosen"), None)
    if chosen is None:
        return None
    floats = [each for each in report.candidates if each.recipe == "float"]
    reference = min(floats, key=lambda each: each.relative_time, default=None)
    is_named = chosen.target == chosen.engine
    return Winner(
        name=chosen.engine if is_named else f"{chosen.target} on {chosen.engine}",
        engine=chosen.engine,
        ratio=None if reference is None else reference.relative_time / chosen.relative_time,
        reference="" if reference is None else reference.engine,
    )


def _int8_ms(each: TargetReport) -> float:
    """Return the geometric mean of the latencies; infinite if there are none."""
    times = [shape.int8_ms for shape in each.latency]
    return statistics.geometric_mean(times) if times else float("inf")


def _float_ms(report: QuantizeReport) -> Mapping[str, float]:
    """Return the geometric mean of the float model's latencies, by engine."""
    from qdqbert.engines.runner import float_engine

    return {
        float_engine(each.engine): statistics.geometric_mean(
            [shape.float_ms for shape in each.latency]
        )
        for each in report.targets
        if each.latency
    }
