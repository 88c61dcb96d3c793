"""Tables of the reports, for a terminal."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from qdqbert.evidence.fidelity import Fidelity
    from qdqbert.evidence.intervals import Interval
    from qdqbert.evidence.limits import LimitCheck
    from qdqbert.evidence.reports import (
        AnalyzeReport,
        BenchmarkReport,
        Cost,
        EvaluateReport,
        QuantizeReport,
        TargetReport,
        TensorRTReport,
        TrainReport,
    )
    from qdqbert.verbs.doctor.report import DoctorReport
    from qdqbert.verbs.run.report import RunReport

_MEGABYTE = 1e6

# Titles are printed above the tables: a title of a table is wrapped to the table's width.


def quantize_table(report: QuantizeReport) -> RenderableType:
    """Show fidelity, speed and size of INT8 next to float, with one column for each engine."""
    title = f"{report.checkpoint}, {report.task}: INT8 compared with float"
    if not report.targets:
        size = f"{report.float_size_bytes / _MEGABYTE:.1f} MB"
        return Text(f"{title}\nNothing was measured. Size in float: {size}.")
    table = Table()
    table.add_column("")
    rows: dict[str, list[str]] = {}
    for index, each in enumerate(report.targets):
        header = each.engine if each.target == each.engine else f"{each.target} on {each.engine}"
        table.add_column(header, justify="right")
        for name, value in _cells(report, each).items():
            row = rows.setdefault(name, [])
            row += [""] * (index - len(row))
            row.append(value)
    for name, values in rows.items():
        table.add_row(name, *values)
    limits = [
        Text.assemble(f"{each.target} on {each.engine}: ", _limit_line(check))
        for each in report.targets
        for check in each.limits
    ]
    if not report.meets_limits:
        missing = "no candidate is" if report.candidates else "not every limit is"
        enough = "close enough to float" if report.candidates else "met"
        limits.append(Text(f"Nothing was written, as {missing} {enough}.", style="bold red"))
    candidates = _candidate_table(report) if report.candidates else []
    return Group(*candidates, Text(title, style="italic"), table, *limits)


def _candidate_table(report: QuantizeReport) -> list[RenderableType]:
    """Show what the target `auto` chose from, and why it chose."""
    table = Table()
    for column in ("", "engine", "target", "recipe", "float type"):
        table.add_column(column)
    for column in ("1 text", "many texts", "relative time"):
        table.add_column(column, justify="right")
    for each in report.candidates:
        table.add_row(
            each.verdict,
            each.engine,
            each.target,
            each.recipe,
            each.precision,
            f"{each.single_ms:.2f} ms",
            f"{each.texts_per_second:,.0f}/s",
            f"{each.relative_time:.2f}",
            style="bold" if each.verdict == "chosen" else None,
        )
    title = (
        "Candidates on this machine, by the geometric mean of the times for one text and for many"
    )
    rejected = [
        Text(f"Rejected: {each.target} ({each.recipe}) on {each.engine}, {each.reason}")
        for each in report.candidates
        if each.verdict == "rejected"
    ]
    return [Text(title, style="italic"), table, *rejected, Text(f"{report.reason or ''}\n")]


def evaluate_table(report: EvaluateReport) -> RenderableType:
    """Show the metrics, and the fidelity if there was a reference."""
    target = "" if report.target is None else f", graph for {report.target},"
    compared = "" if report.reference is None else f", compared with {report.reference}"
    title = f"{report.model}{target} on {report.engine}{compared}"
    table = Table()
    table.add_column(report.task)
    table.add_column(_counted(report.examples, "example"), justify="right")
    if report.reference is not None:
        table.add_column("reference", justify="right")
        table.add_column("difference (95 %)", justify="right")
    theirs = {metric.name: f"{metric.value:.2f}" for metric in report.reference_metrics}
    differences = {
        each.name: f"{each.value:+.2f} {_interval(each.interval, '+.2f')}"
        for each in report.differences
    }
    for metric in report.metrics:
        others = [each.get(metric.name, "") for each in (theirs, differences)]
        table.add_row(metric.name, f"{metric.value:.2f}", *(others if report.reference else []))
    if report.fidelity is not None:
        fidelity = report.fidelity
        if fidelity.cosine_mean is not None:
            table.add_row(
                "cosine to reference, mean / worst",
                f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}",
            )
        sqnr = _interval(fidelity.sqnr_interval, ".1f")
        table.add_row("SQNR to reference", f"{fidelity.sqnr_db:.1f} dB", "", sqnr)
        if fidelity.flips_percent is not None and fidelity.flips_interval is not None:
            table.add_row(
                _changed_predictions(fidelity, report.task),
                f"{fidelity.flips_percent:.2f} %",
                "",
                _interval(fidelity.flips_interval, ".2f"),
            )
    limits = [_limit_line(each) for each in report.limits]
    return Group(Text(title, style="italic"), table, *limits)


def _interval(interval: Interval, digits: str) -> str:
    """Return both ends of an interval: "(0.19 to 1.33)"."""
    return f"({interval.low:{digits}} to {interval.high:{digits}})"


def _limit_line(check: LimitCheck) -> Text:
    """Return the verdict about a limit: "--max-flips 1: met, 0.57 (0.19 to 1.33)"."""
    flag = f"--{check.option.replace('_', '-')} {check.limit:g}"
    style = {"met": "green", "missed": "bold red", "not shown": "red"}[check.verdict]
    measured = f"{check.value:.4g} {_interval(check.interval, '.4g')}"
    return Text(f"{flag}: {check.verdict}, {measured}", style=style)


def analyze_table(report: AnalyzeReport) -> RenderableType:
    """Show what each unit costs, the most costly one first."""
    title = (
        f"{report.model}, {report.task}: recipe {report.recipe} for {report.target}, "
        f"{_counted(report.examples, 'example')}"
    )
    table = Table()
    table.add_column("quantized")
    table.add_column("share of int8", justify="right")
    table.add_column("alone", justify="right")
    table.add_column("the rest, if this and all above stay in float", justify="right")
    table.add_row("everything", "100.0 %", _cost(report.whole, report.metric), "")
    for each in report.units:
        costs = (_cost(cost, report.metric) for cost in (each.alone, each.left))
        table.add_row(each.name, f"{each.share_percent:.1f} %", *costs)
    return Group(Text(title, style="italic"), table)


def _cost(cost: Cost, metric: str | None) -> str:
    """Return a cost in words: "31.2 dB, 1.50 % changed, f1 -0.21"."""
    words = ["equal" if math.isinf(cost.sqnr_db) else f"{cost.sqnr_db:.1f} dB"]
    if cost.flips_percent is not None:
        words.append(f"{cost.flips_percent:.2f} % changed")
    if cost.drop is not None:
        words.append(f"{metric} {0 - cost.drop:+.2f}")
    return ", ".join(words)


def train_table(report: TrainReport) -> RenderableType:
    """Show the metrics before and after training."""
    kind = f"QAT with {report.quantizers} quantizers" if report.quantizers else "float training"
    steps = _counted(report.steps, "step")
    title = f"{report.checkpoint}, {report.task}: {kind}, {steps}"
    if not report.after:
        trained = _counted(report.training_examples, "example")
        return Text(f"{title}\nTrained on {trained}. Pass `--eval-data` to see metrics.")
    table = Table()
    table.add_column("")
    before_training = "calibrated, before training" if report.quantizers else "before training"
    for column in (before_training, "after training"):
        table.add_column(column, justify="right")
    for before, after in zip(report.before, report.after, strict=True):
        table.add_row(after.name, f"{before.value:.2f}", f"{after.value:.2f}")
    return Group(Text(title, style="italic"), table)


def benchmark_table(report: BenchmarkReport) -> RenderableType:
    """Show latencies and their ratios to the first model's."""
    threads = "" if report.threads is None else f", {_counted(report.threads, 'thread')}"
    title = f"Median latency{threads}"
    table = Table()
    for column in ("model", "engine", "float type"):
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
    return Group(Text(title, style="italic"), table)


def tensorrt_table(report: TensorRTReport) -> RenderableType:
    """Show the latency of a TensorRT engine, or the command line that builds it."""
    # Lines that a shell joins again, and that are not wrapped at the width of the terminal.
    words = [shlex.quote(word) for word in shlex.split(report.trtexec)]
    command = Text(" \\\n  ".join(words), overflow="ignore", no_wrap=True)
    if report.size_bytes is None:
        return command
    size = f"{report.size_bytes / _MEGABYTE:.1f} MB"
    title = f"{report.engine}: {size}, TensorRT {report.tensorrt}, {report.gpu}"
    table = Table()
    for column in ("batch x tokens", "median ms", "best ms"):
        table.add_column(column, justify="right")
    for each in report.timings:
        shape = f"{each.batch} x {each.sequence}"
        table.add_row(shape, f"{each.median_ms:.3f}", f"{each.best_ms:.3f}")
    return Group(Text(title, style="italic"), table, Text("The same with trtexec:"), command)


def run_table(report: RunReport) -> RenderableType:
    """Show the numbers of rows and tokens, and the speed."""
    title = f"{report.model}, {report.task}: graph for {report.target} on {report.engine}"
    table = Table()
    for column in ("rows", "tokens", "seconds", "rows/s", "tokens/s"):
        table.add_column(column, justify="right")
    table.add_row(
        f"{report.rows:,}",
        f"{report.tokens:,}",
        f"{report.seconds:.1f}",
        f"{report.rows_per_second:,.0f}",
        f"{report.tokens_per_second:,.0f}",
    )
    resumed = []
    if report.resumed_rows:
        resumed.append(Text(f"Continued after {_counted(report.resumed_rows, 'row')}."))
    return Group(Text(title, style="italic"), table, *resumed)


def doctor_table(report: DoctorReport) -> RenderableType:
    """Show the machine, the engines, and what is missing."""
    machine = Table(show_header=False)
    machine.add_row("CPU", f"{report.cpu}, {_counted(report.cores, 'core')}")
    for name, meaning in report.cpu_features.items():
        machine.add_row(name, meaning)
    for name in report.gpus:
        machine.add_row("GPU", name)
    machine.add_row("system", f"{report.system}, Python {report.python}")
    parts = Table()
    for title in ("part", "version", "what it is for"):
        parts.add_column(title)
    for each in (*report.engines, *report.extras):
        purpose = ", ".join((each.purpose, *each.details))
        parts.add_row(each.name, each.version or f"missing: {each.install}", purpose)
    return Group(Text(report.verdict, style="bold"), machine, parts)


def _cells(report: QuantizeReport, each: TargetReport) -> dict[str, str]:
    fidelity, lowering = each.fidelity, each.lowering
    cells = {"recipe": each.recipe}
    if each.units_in_float:
        cells["left in float to meet the limits"] = "\n".join(each.units_in_float)
    for difference in each.differences:
        cells[f"{difference.name}, difference (95 %)"] = (
            f"{difference.value:+.2f} {_interval(difference.interval, '+.2f')}"
        )
    if fidelity.flips_percent is not None:
        name = _changed_predictions(fidelity, report.task)
        cells[name] = f"{fidelity.flips_percent:.2f} %"
    if fidelity.cosine_mean is not None:
        cells["cosine to float, mean / worst"] = (
            f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}"
        )
    cells["SQNR to float"] = f"{fidelity.sqnr_db:.1f} dB"
    cells["SQNR to PyTorch's INT8, worst layer"] = (
        f"{lowering.worst_layer_db:.1f} dB{'' if lowering.is_exact else ' (too low!)'}"
    )
    invariance = each.batch_invariance
    cells[f"result depends on the batch, {_counted(invariance.texts, 'text')}"] = (
        "never"
        if invariance.is_exact
        else f"{invariance.differing}, by up to {invariance.largest_difference:.1g}"
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


def _changed_predictions(fidelity: Fidelity, task: str) -> str:
    """Return the name of the row, with the number of decisions and what they are about."""
    # Imports torch, which takes longer than printing the help.
    from qdqbert.tasks import TASKS

    return f"changed predictions, {_counted(fidelity.decisions or 0, TASKS[task].decided)}"


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 example", "2 examples"."""
    from qdqbert.tasks.lines import plural

    return f"{count:,} {noun if count == 1 else plural(noun)}"
