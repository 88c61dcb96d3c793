"""Reports as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qdqbert.evidence.reports import (
    BenchmarkReport,
    EvaluateReport,
    QuantizeReport,
    TargetReport,
    TrainReport,
)

_MEGABYTE = 1e6


def quantize_table(report: QuantizeReport) -> RenderableType:
    """Fidelity, speed and size of INT8 against float, an engine a column."""
    table = Table(title=f"{report.checkpoint}, {report.task}: INT8 against float")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    for each in report.targets:
        header = each.engine if each.target == each.engine else f"{each.target} on {each.engine}"
        table.add_column(header, justify="right")
        for name, value in _cells(report, each).items():
            rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        table.add_row(name, *values)
    return Group(table, *_notices(report.notices), Text(f"Written to {report.directory}"))


def _cells(report: QuantizeReport, each: TargetReport) -> dict[str, str]:
    fidelity, lowering = each.fidelity, each.lowering
    cells = {"recipe": each.recipe}
    if fidelity.flips_percent is not None:
        cells[f"predictions flipped, {fidelity.texts} held-out texts"] = (
            f"{fidelity.flips_percent:.2f} %"
        )
    if fidelity.cosine_mean is not None:
        cells["cosine to float, mean / worst"] = (
            f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}"
        )
    cells["SQNR to float"] = f"{fidelity.sqnr_db:.1f} dB"
    cells["SQNR to PyTorch's INT8, worst layer"] = (
        f"{lowering.worst_layer_db:.1f} dB{'' if lowering.is_exact else ' (too low!)'}"
    )
    for latency in each.latency:
        cells[f"latency {latency.batch} x {latency.sequence}, float -> INT8"] = (
            f"{latency.float_ms:.1f} -> {latency.int8_ms:.1f} ms ({latency.speedup:.2f} x)"
        )
    cells["size, float -> INT8"] = (
        f"{report.float_size_bytes / _MEGABYTE:.1f} -> {each.size_bytes / _MEGABYTE:.1f} MB "
        f"({each.size_ratio:.2f})"
    )
    return cells


def evaluate_table(report: EvaluateReport) -> RenderableType:
    """The metrics, and fidelity if there was a reference."""
    made_for = "" if report.target in (None, report.engine) else f" ({report.target})"
    table = Table(title=f"{report.model}{made_for} on {report.engine}")
    table.add_column(report.task)
    table.add_column(f"{report.examples} examples", justify="right")
    if report.reference is not None:
        table.add_column("reference", justify="right")
    theirs = {metric.name: f"{metric.value:.2f}" for metric in report.reference_metrics}
    for metric in report.metrics:
        table.add_row(metric.name, f"{metric.value:.2f}", theirs.get(metric.name, ""))
    if report.fidelity is not None:
        fidelity = report.fidelity
        if fidelity.cosine_mean is not None:
            table.add_row(
                "cosine to reference, mean / worst",
                f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}",
            )
        table.add_row("SQNR to reference", f"{fidelity.sqnr_db:.1f} dB")
        if fidelity.flips_percent is not None:
            table.add_row("predictions flipped", f"{fidelity.flips_percent:.2f} %")
    return Group(table, *_notices(report.notices))


def train_table(report: TrainReport) -> RenderableType:
    """Metrics before and after; without evaluation data, what it was trained on."""
    kind = f"QAT with {report.quantizers} quantizers" if report.quantizers else "float training"
    table = Table(title=f"{report.checkpoint}, {report.task}: {kind}, {report.steps} steps")
    if report.after:
        table.add_column("")
        for column in ("before", "after"):
            table.add_column(column, justify="right")
    else:
        table.show_header = False
        table.add_row(
            f"trained on {report.training_examples} examples; `--eval-data` would show metrics"
        )
    for before, after in zip(report.before, report.after, strict=True):
        table.add_row(after.name, f"{before.value:.2f}", f"{after.value:.2f}")
    return Group(table, *_notices(report.notices), Text(f"Written to {report.directory}"))


def benchmark_table(report: BenchmarkReport) -> RenderableType:
    """Latencies and their ratios to the first model's."""
    threads = "" if report.threads is None else f", {report.threads} threads"
    table = Table(title=f"Median latency{threads}")
    for column in ("model", "engine", "floats in"):
        table.add_column(column)
    for column in ("batch x tokens", "ms", "speed-up"):
        table.add_column(column, justify="right")
    shape = None
    for timing, ratio in zip(report.timings, report.speedups, strict=True):
        if shape not in (None, (timing.batch, timing.sequence)):
            table.add_section()
        shape = (timing.batch, timing.sequence)
        table.add_row(
            timing.name,
            timing.engine,
            timing.precision,
            f"{timing.batch} x {timing.sequence}",
            f"{timing.median_ms:.2f}",
            f"{ratio:.2f} x",
        )
    return table


def _notices(notices: tuple[str, ...]) -> list[RenderableType]:
    return [Text(f"Note: {notice}", style="yellow") for notice in notices]
