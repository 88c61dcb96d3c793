"""Measurements in words, as tables on a terminal and in a browser show them.

The command line imports this module before it needs a model, so it imports no heavy library.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqbert.evidence.fidelity import Fidelity
    from qdqbert.evidence.intervals import Interval
    from qdqbert.evidence.reports import (
        EvaluateReport,
        QuantizeReport,
        TargetReport,
    )

MEGABYTE = 1e6
"""Bytes of a megabyte, as sizes are shown."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table of an evaluation.

    Attributes:
        name: What was measured.
        value: The measurement of the model.
        reference: That of the reference; empty if there is none.
        difference: The difference and its interval, or the interval of the value.
    """

    name: str
    value: str
    reference: str = ""
    difference: str = ""


def graph_name(each: TargetReport) -> str:
    """Return the name of a graph: its engine, and its target if that has another name."""
    return each.engine if each.target == each.engine else f"{each.target} on {each.engine}"


def interval_text(interval: Interval, digits: str) -> str:
    """Return both ends of an interval: "(0.19 to 1.33)"."""
    return f"({interval.low:{digits}} to {interval.high:{digits}})"


def size_text(size_bytes: int) -> str:
    """Return a size in megabytes."""
    return f"{size_bytes / MEGABYTE:.1f} MB"


def target_facts(report: QuantizeReport, each: TargetReport) -> dict[str, str]:
    """Return the measurements of a graph on an engine, by what was measured."""
    fidelity, lowering = each.fidelity, each.lowering
    facts = {"recipe": each.recipe}
    if each.units_in_float:
        facts["left in float to meet the limits"] = "\n".join(each.units_in_float)
    for difference in each.differences:
        facts[f"{difference.name}, difference (95 %)"] = (
            f"{difference.value:+.2f} {interval_text(difference.interval, '+.2f')}"
        )
    if fidelity.flips_percent is not None:
        facts[changed_predictions(fidelity, report.task)] = f"{fidelity.flips_percent:.2f} %"
    if fidelity.cosine_mean is not None:
        facts["cosine to float, mean / worst"] = (
            f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}"
        )
    facts["SQNR to float"] = f"{fidelity.sqnr_db:.1f} dB"
    facts["SQNR to PyTorch's INT8, worst layer"] = (
        f"{lowering.worst_layer_db:.1f} dB{'' if lowering.is_exact else ' (too low!)'}"
    )
    invariance = each.batch_invariance
    facts[f"result depends on the batch, {counted(invariance.texts, 'text')}"] = (
        "never"
        if invariance.is_exact
        else f"{invariance.differing}, by up to {invariance.largest_difference:.1g}"
    )
    for latency in each.latency:
        facts[f"latency {latency.batch} x {latency.sequence}, float -> INT8"] = (
            f"{latency.float_ms:.1f} -> {latency.int8_ms:.1f} ms ({latency.speedup:.2f} x"
            f"{', timings varied' if latency.varied else ''})"
        )
    facts["size, float -> INT8"] = (
        f"{report.float_size_bytes / MEGABYTE:.1f} -> {size_text(each.size_bytes)} "
        f"({each.size_ratio:.2f})"
    )
    return facts


def comparison_rows(report: QuantizeReport) -> dict[str, list[str]]:
    """Return the measurements of all graphs, by what was measured: one cell for each graph."""
    rows: dict[str, list[str]] = {}
    for index, each in enumerate(report.targets):
        for name, value in target_facts(report, each).items():
            rows.setdefault(name, [""] * len(report.targets))[index] = value
    return rows


def evaluation_rows(report: EvaluateReport) -> list[Row]:
    """Return the metrics of an evaluation, and the fidelity if there was a reference."""
    theirs = {metric.name: f"{metric.value:.2f}" for metric in report.reference_metrics}
    differences = {
        each.name: f"{each.value:+.2f} {interval_text(each.interval, '+.2f')}"
        for each in report.differences
    }
    rows = [
        Row(
            name=metric.name,
            value=f"{metric.value:.2f}",
            reference=theirs.get(metric.name, ""),
            difference=differences.get(metric.name, ""),
        )
        for metric in report.metrics
    ]
    if report.fidelity is not None:
        rows += _fidelity_rows(report.fidelity, report.task)
    return rows


def _fidelity_rows(fidelity: Fidelity, task: str) -> list[Row]:
    rows = []
    if fidelity.cosine_mean is not None:
        cosines = f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}"
        rows.append(Row(name="cosine to reference, mean / worst", value=cosines))
    rows.append(
        Row(
            name="SQNR to reference",
            value=f"{fidelity.sqnr_db:.1f} dB",
            difference=interval_text(fidelity.sqnr_interval, ".1f"),
        )
    )
    if fidelity.flips_percent is not None and fidelity.flips_interval is not None:
        rows.append(
            Row(
                name=changed_predictions(fidelity, task),
                value=f"{fidelity.flips_percent:.2f} %",
                difference=interval_text(fidelity.flips_interval, ".2f"),
            )
        )
    return rows


def changed_predictions(fidelity: Fidelity, task: str) -> str:
    """Return the name of a row, with the number of decisions and what they are about."""
    # Imports torch, which takes longer than printing the help.
    from qdqbert.tasks.registry import TASKS

    return f"changed predictions, {counted(fidelity.decisions or 0, TASKS[task].decided)}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 example", "2 examples"."""
    from qdqbert.tasks.lines import plural

    return f"{count:,} {noun if count == 1 else plural(noun)}"
