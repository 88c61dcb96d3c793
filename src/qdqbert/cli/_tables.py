"""Tables of the reports, for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from qdqbert.reporting.facts import (
    comparison_rows,
    counted,
    evaluation_rows,
    graph_name,
    interval_text,
    size_text,
)

if TYPE_CHECKING:
    from qdqbert.evidence.limits import LimitCheck
    from qdqbert.evidence.reports import (
        AnalyzeReport,
        BenchmarkReport,
        Cost,
        EvaluateReport,
        QuantizeReport,
        TrainReport,
    )
    from qdqbert.verbs.doctor.report import Cache, DoctorReport
    from qdqbert.verbs.export.report import ExportReport
    from qdqbert.verbs.push.report import PushReport
    from qdqbert.verbs.run.report import RunReport
    from qdqbert.verbs.serve.report import ServeReport
    from qdqbert.verbs.verify.report import VerifyReport

# Titles are printed above the tables: a title of a table is wrapped to the table's width.


def quantize_table(report: QuantizeReport) -> RenderableType:
    """Show fidelity, speed and size of INT8 next to float, with one column for each engine."""
    title = f"{report.checkpoint}, {report.task}: INT8 compared with float"
    if not report.targets:
        size = size_text(report.float_size_bytes)
        return Text(f"{title}\nNothing was measured. Size in float: {size}.")
    table = Table()
    table.add_column("")
    for each in report.targets:
        table.add_column(graph_name(each), justify="right")
    for name, values in comparison_rows(report).items():
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
    table.add_column(counted(report.examples, "example"), justify="right")
    if report.reference is not None:
        table.add_column("reference", justify="right")
        table.add_column("difference (95 %)", justify="right")
    for row in evaluation_rows(report):
        others = [row.reference, row.difference] if report.reference is not None else []
        table.add_row(row.name, row.value, *others)
    limits = [_limit_line(each) for each in report.limits]
    return Group(Text(title, style="italic"), table, *limits)


def _limit_line(check: LimitCheck) -> Text:
    """Return the verdict about a limit: "--max-flips 1: met, 0.57 (0.19 to 1.33)"."""
    flag = f"--{check.option.replace('_', '-')} {check.limit:g}"
    style = {"met": "green", "missed": "bold red", "not shown": "red"}[check.verdict]
    measured = f"{check.value:.4g} {interval_text(check.interval, '.4g')}"
    return Text(f"{flag}: {check.verdict}, {measured}", style=style)


def analyze_table(report: AnalyzeReport) -> RenderableType:
    """Show what each unit costs, the most costly one first."""
    title = (
        f"{report.model}, {report.task}: recipe {report.recipe} for {report.target}, "
        f"{counted(report.examples, 'example')}"
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
    steps = counted(report.steps, "step")
    title = f"{report.checkpoint}, {report.task}: {kind}, {steps}"
    if not report.after:
        trained = counted(report.training_examples, "example")
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
    threads = "" if report.threads is None else f", {counted(report.threads, 'thread')}"
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
        resumed.append(Text(f"Continued after {counted(report.resumed_rows, 'row')}."))
    return Group(Text(title, style="italic"), table, *resumed)


def serve_table(report: ServeReport) -> RenderableType:
    """Show what a server did."""
    return Text(
        f"Answered {counted(report.requests, 'request')} with {counted(report.inputs, 'input')} "
        f"({report.tokens:,} tokens) in {report.seconds:.0f} s."
    )


def export_table(report: ExportReport) -> RenderableType:
    """Show how close the exported model is, its files, and how to run it."""
    title = f"{report.model} ({report.target}) as {report.to}: {report.task}"
    close = Table()
    for name in ("output", "texts", "SQNR to the folder", "worst text"):
        close.add_column(name, justify="left" if name == "output" else "right")
    for each in report.agreement:
        levels = (_decibels(each.sqnr_db), _decibels(each.worst_sqnr_db))
        close.add_row(each.output, str(each.texts), *levels)
    lines = [
        f"All tokens are those of `tokenizers`. Texts are cut at {report.max_length} tokens.",
        f"{counted(len(report.files), 'file')}, {size_text(report.size_bytes)}. To run it:",
        "",
        *(f"    {line}".rstrip() for line in report.usage.splitlines()),
        "",
    ]
    return Group(Text(title, style="italic"), close, Text("\n".join(lines)))


def _decibels(value: float) -> str:
    return "equal" if value == math.inf else f"{value:.1f} dB"


def push_table(report: PushReport) -> RenderableType:
    """Show the files with their sizes, and where they are now."""
    table = Table()
    table.add_column("file")
    table.add_column("size", justify="right")
    for name, size in report.files.items():
        table.add_row(name, size_text(size))
    table.add_section()
    table.add_row("all", size_text(report.size_bytes))
    is_there = report.url is not None
    where = f"Uploaded: {report.url}" if is_there else "Nothing was uploaded."
    return Group(Text(f"{report.model} to {report.repo}", style="italic"), table, Text(where))


def verify_table(report: VerifyReport) -> RenderableType:
    """Show damaged files, packages whose versions differ, and fidelity then and now."""
    parts: list[RenderableType] = [Text(f"{report.model} on {report.cpu}", style="italic")]
    damaged = [each for each in report.files if each.verdict != "intact"]
    parts += [Text(f"{each.name}: {each.verdict}", style="bold red") for each in damaged]
    if report.has_checksums and not damaged:
        parts.append(Text(f"All files are intact ({len(report.files)}).", style="green"))
    other = [each for each in report.versions if each.stored != each.installed]
    if other:
        versions = Table()
        for title in ("package", "then", "now"):
            versions.add_column(title)
        for package in other:
            versions.add_row(package.name, package.stored, package.installed or "not installed")
        parts.append(versions)
    if report.fidelity:
        fidelity = Table()
        fidelity.add_column("graph")
        for title in ("SQNR then", "SQNR now", "at least"):
            fidelity.add_column(title, justify="right")
        for graph in report.fidelity:
            values = (graph.stored_db, graph.sqnr_db, graph.lowest_db)
            style = None if graph.is_close else "bold red"
            name = f"{graph.target} on {graph.engine}"
            fidelity.add_row(name, *(f"{value:.1f} dB" for value in values), style=style)
        parts.append(fidelity)
    verdict = "Verified." if report.meets_limits else "Not verified."
    return Group(*parts, Text(verdict, style="green" if report.meets_limits else "bold red"))


def doctor_table(report: DoctorReport) -> RenderableType:
    """Show the machine, the engines, and what is missing."""
    machine = Table(show_header=False)
    machine.add_row("CPU", f"{report.cpu}, {counted(report.cores, 'core')}")
    for name, meaning in report.cpu_features.items():
        machine.add_row(name, meaning)
    for name in report.gpus:
        machine.add_row("GPU", name)
    machine.add_row("system", f"{report.system}, Python {report.python}")
    machine.add_row("cache", _cache_line(report.cache))
    parts = Table()
    for title in ("part", "version", "what it is for"):
        parts.add_column(title)
    for each in (*report.engines, *report.extras):
        purpose = ", ".join((each.purpose, *each.details))
        parts.add_row(each.name, each.version or f"missing: {each.install}", purpose)
    return Group(Text(report.verdict, style="bold"), machine, parts)


def _cache_line(cache: Cache) -> str:
    """Return the content of the cache in words: "FOLDER: 2 models, 45.9 MB of at most 20 GB"."""
    limit = f"{cache.limit_bytes / 1e9:.3g} GB"
    if cache.models is None or cache.size_bytes is None:
        return f"{cache.folder} cannot be read ({cache.problem}), at most {limit}"
    size = size_text(cache.size_bytes)
    return f"{cache.folder}: {counted(cache.models, 'model')}, {size} of at most {limit}"
