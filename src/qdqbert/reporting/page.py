"""A report as one HTML file, which loads nothing and runs no script."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from qdqbert.evidence.reports import EvaluateReport, QuantizeReport, TargetReport
from qdqbert.reporting.facts import (
    MEGABYTE,
    Row,
    changed_predictions,
    counted,
    evaluation_rows,
    graph_name,
    size_text,
)
from qdqbert.reporting.rendering import render
from qdqbert.reporting.sections import Section, evaluate_sections, quantize_sections
from qdqbert.reporting.usage import by_speed, winner
from qdqbert.reporting.verdict import Verdict, evaluate_verdict, quantize_verdict, span


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """One of the most important numbers.

    Attributes:
        title: Name of the tile.
        value: The number.
        note: Explanation, below the value.
    """

    title: str
    value: str
    note: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """The values of the template.

    Attributes:
        title: Title of the page.
        summary: The call in a sentence or two.
        verdict: The result in one line.
        tiles: The most important numbers.
        warnings: Results that make the model doubtful or useless.
        notices: Other messages.
        sections: Everything else.
        command: Command line that makes the same report.
    """

    title: str
    summary: str
    verdict: Verdict
    tiles: tuple[Tile, ...]
    warnings: tuple[str, ...]
    notices: tuple[str, ...]
    sections: tuple[Section, ...]
    command: str


def quantize_page(report: QuantizeReport) -> str:
    """Return the report of `quantize` as HTML."""
    report = dataclasses.replace(report, targets=by_speed(report))
    page = Page(
        title=f"{_short(report.checkpoint)} in INT8",
        summary=_quantize_summary(report),
        verdict=quantize_verdict(report),
        tiles=_quantize_tiles(report),
        warnings=report.warnings,
        notices=report.notices,
        sections=quantize_sections(report),
        command=report.command,
    )
    return render("page.html.jinja", page=page)


def evaluate_page(report: EvaluateReport) -> str:
    """Return the report of `evaluate` as HTML."""
    on = report.engine if report.target is None else f"{report.engine}, graph for {report.target}"
    compared = "" if report.reference is None else f" It is compared with {report.reference}."
    page = Page(
        title=f"{_short(report.model)}: evaluation",
        summary=(
            f"The metrics of {report.task} on {counted(report.examples, 'example')} of "
            f"{report.data}. {report.model} ran on {on}.{compared}"
        ),
        verdict=evaluate_verdict(report),
        tiles=tuple(_evaluation_tile(row) for row in evaluation_rows(report)[:4]),
        warnings=(),
        notices=report.notices,
        sections=evaluate_sections(report),
        command=report.command,
    )
    return render("page.html.jinja", page=page)


def _short(name: str) -> str:
    """Return the name of a model for a title: of an absolute path, the last two parts."""
    path = Path(name)
    return "/".join(path.parts[-2:]) if path.is_absolute() else name.removeprefix("./")


def _evaluation_tile(row: Row) -> Tile:
    reference = f"reference {row.reference}, " if row.reference else ""
    return Tile(title=row.name, value=row.value, note=f"{reference}{row.difference}")


def _quantize_summary(report: QuantizeReport) -> str:
    made = (
        f"{report.checkpoint} ({report.task}) was quantized to INT8. Its ranges were taken from "
        f"{counted(report.calibration_texts, 'text')}."
    )
    if not report.targets:
        return f"{made} No engine that is installed here runs its graphs."
    graphs = ", ".join(dict.fromkeys(graph_name(each) for each in report.targets))
    heldout = counted(report.heldout_texts, "other text")
    return f"{made} INT8 is compared with float on {heldout}, on {report.cpu}: {graphs}."


def _quantize_tiles(report: QuantizeReport) -> tuple[Tile, ...]:
    targets = report.targets
    if not targets:
        return (Tile(title="size in float", value=size_text(report.float_size_bytes), note=""),)
    tiles = []
    best = winner(report)
    if best is not None and best.ratio is not None:
        note = f"as fast as float on {best.reference}, its best engine here"
        tiles.append(Tile(title=f"fastest: {best.name}", value=f"{best.ratio:.1f} x", note=note))
    floats = {each.name: each.value for each in report.float_metrics}
    if targets[0].metrics:
        name = targets[0].metrics[0].name
        values = span([each.metrics[0].value for each in targets], ".2f")
        tiles.append(Tile(title=name, value=values, note=f"float: {floats[name]:.2f}"))
    tiles.append(_fidelity_tile(targets, report.task))
    ratio = span([100 * each.size_ratio for each in targets], ".0f")
    sizes = span([each.size_bytes / MEGABYTE for each in targets], ".1f")
    note = f"float {size_text(report.float_size_bytes)}, INT8 {sizes} MB"
    tiles.append(Tile(title="size compared with float", value=f"{ratio} %", note=note))
    return tuple(tiles)


def _fidelity_tile(targets: Sequence[TargetReport], task: str) -> Tile:
    fidelities = [each.fidelity for each in targets]
    flips = [each.flips_percent for each in fidelities if each.flips_percent is not None]
    if flips:
        worst = max(fidelities, key=lambda each: each.flips_percent or 0.0)
        assert worst.flips_interval is not None
        *_, decided = changed_predictions(worst, task).partition(", ")
        low, high = worst.flips_interval.low, worst.flips_interval.high
        return Tile(
            title="changed predictions",
            value=f"{span(flips, '.2f')} %",
            note=f"of {decided}; other texts may give {low:.2f} to {high:.2f} %",
        )
    cosines = [each.cosine_mean for each in fidelities if each.cosine_mean is not None]
    if cosines:
        worst_cosine = min(each.cosine_min for each in fidelities if each.cosine_min is not None)
        return Tile(
            title="cosine to float",
            value=span(cosines, ".4f"),
            note=f"mean over the texts; the worst text has {worst_cosine:.4f}",
        )
    decibels = span([each.sqnr_db for each in fidelities], ".1f")
    return Tile(title="SQNR to float", value=f"{decibels} dB", note="more is better")
