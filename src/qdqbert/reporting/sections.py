"""Parts of a report: plots and tables of one kind of measurement each."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence

from qdqbert.engines.runner import float_engine
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.evidence.lowering import LayerFidelity
from qdqbert.evidence.reports import (
    CandidateReport,
    EvaluateReport,
    LatencyReport,
    QuantizeReport,
    Sensitivity,
    TargetReport,
)
from qdqbert.reporting.facts import (
    changed_predictions,
    comparison_rows,
    counted,
    evaluation_rows,
    graph_name,
    interval_text,
    size_text,
)
from qdqbert.reporting.plots import (
    Bar,
    Kind,
    Measured,
    bar_plot,
    histogram_plot,
    interval_plot,
    line_plot,
)
from qdqbert.reporting.usage import package, usage, winner_text
from qdqbert.reporting.verdict import limit_text
from qdqbert.targets import target_named

_TERMS = (
    (
        "float, INT8",
        "The model before and after quantization. INT8 stores weights and computes linear layers "
        "with integers of 8 bits, which takes a quarter of the memory.",
    ),
    (
        "changed predictions",
        "Share of the decisions in which both models differ, right or wrong.",
    ),
    (
        "SQNR",
        "Signal-to-quantization-noise ratio of the outputs, the float model's being the signal. "
        "More is better: at 20 dB the noise is a tenth of the signal, at 40 dB a hundredth.",
    ),
    ("cosine", "Similarity of a text's two embeddings. 1 is equal."),
    (
        "interval",
        "What other examples of the same kind would give, at a confidence of 95 %. It is shown as "
        "a line around a point, or in parentheses.",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot.

    Attributes:
        caption: What it shows.
        svg: The plot.
    """

    caption: str
    svg: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table.

    Attributes:
        header: Names of the columns; empty if the first column is enough.
        rows: Its cells. Lines of a cell are kept.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its title.
        text: What it is about.
        figures: Plots.
        table: A table, if there is one.
        code: Lines of a program, if there are some.
        is_folded: Whether only the title is shown until it is opened.
    """

    title: str
    text: str = ""
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    code: str = ""
    is_folded: bool = False


def quantize_sections(report: QuantizeReport) -> tuple[Section, ...]:
    """Return the parts of the report of `quantize`, without those that were not measured."""
    limits = [(graph_name(each), check) for each in report.targets for check in each.limits]
    sections = [_environment(report.cpu, report.cpu_features, report.cores, report.versions)]
    if report.calibration_lengths is not None:
        sections.insert(0, _lengths(report))
    if report.targets:
        sections[:0] = [
            *_usage(report),
            _quality(report),
            *_limits(limits),
            *_speed(report.targets),
            *_candidates(report),
            *_changed(report.targets[0]),
            _sizes(report),
            _folded(_layers(report.targets)),
            _folded(_batches(report.targets)),
            _folded(_saturation(report.targets)),
            _folded(_measurements(report)),
        ]
    return (*sections, _folded(_terms()))


def _folded(section: Section) -> Section:
    return dataclasses.replace(section, is_folded=True)


def _usage(report: QuantizeReport) -> list[Section]:
    """Show the winner, and the lines that run it."""
    lines = usage(report)
    if not lines:
        return []
    serve = f"qdqbert serve {shlex.quote(str(report.directory))}"
    return [
        Section(
            title="How to run it",
            text=f"{winner_text(report)} The lines of Python run it, and the last command answers "
            "requests over HTTP.",
            code="\n".join((f"pip install {package(report)}", "", *lines, "", serve)),
        )
    ]


def evaluate_sections(report: EvaluateReport) -> tuple[Section, ...]:
    """Return the parts of the report of `evaluate`, without those that were not measured."""
    return (
        _metrics(report),
        *_limits([(report.engine, check) for check in report.limits]),
        _environment(report.cpu, report.cpu_features, report.cores, report.versions),
        _terms(),
    )


def _quality(report: QuantizeReport) -> Section:
    """Show metrics, changed predictions and noise, with one row for each graph."""
    graphs = [(graph_name(each), each) for each in report.targets]
    named: dict[str, list[tuple[str, MetricDifference]]] = {}
    for name, each in graphs:
        for difference in each.differences:
            named.setdefault(difference.name, []).append((name, difference))
    checks = [check for each in report.targets for check in each.limits]
    figures = _difference_figures(named, checks)
    flips = [
        _measured(name, each.fidelity.flips_percent, each.fidelity.flips_interval)
        for name, each in graphs
        if each.fidelity.flips_percent is not None and each.fidelity.flips_interval is not None
    ]
    if flips:
        caption = f"{changed_predictions(report.targets[0].fidelity, report.task)}, in percent"
        figures.append(_interval_figure(caption, flips, " %", _limit_on("max_flips", checks)))
    noise = [
        _measured(name, each.fidelity.sqnr_db, each.fidelity.sqnr_interval) for name, each in graphs
    ]
    caption = "SQNR of the outputs, in dB: more is better"
    figures.append(_interval_figure(caption, noise, " dB", _limit_on("min_sqnr", checks)))
    return Section(
        title="Is it as good as the float model?",
        text=f"Both models answered {counted(report.heldout_texts, 'text')} that were not used to "
        "calibrate. A line around a point is the interval at a confidence of 95 %, and a dashed "
        "line a limit.",
        figures=tuple(figures),
    )


def _difference_figures(
    named: Mapping[str, Sequence[tuple[str, MetricDifference]]], checks: Sequence[LimitCheck]
) -> list[Figure]:
    """Show each metric's differences, by graph. The limit is on the first metric, the main one."""
    figures = []
    limit = _limit_on("max_drop", checks)
    for metric, rows in named.items():
        is_error = rows[0][1].is_error
        caption = f"{metric}: difference, {'lower' if is_error else 'higher'} is better"
        measured = [_measured(name, each.value, each.interval) for name, each in rows]
        bound = None if limit is None else limit if is_error else -limit
        figures.append(_interval_figure(caption, measured, "", bound))
        limit = None
    return figures


def _interval_figure(
    caption: str, rows: Sequence[Measured], unit: str, limit: float | None
) -> Figure:
    return Figure(caption=caption, svg=interval_plot(rows, title=caption, unit=unit, limit=limit))


def _limit_on(option: str, checks: Sequence[LimitCheck]) -> float | None:
    """Return a limit; `None` if it was not set. It is the same for all graphs."""
    return next((check.limit for check in checks if check.option == option), None)


def _measured(label: str, value: float, interval: Interval) -> Measured:
    return Measured(label=label, value=value, low=interval.low, high=interval.high)


def _limits(checks: Sequence[tuple[str, LimitCheck]]) -> list[Section]:
    if not checks:
        return []
    rows = tuple(
        (
            name,
            limit_text(check),
            f"{check.value:.4g} {interval_text(check.interval, '.4g')}",
            check.verdict,
        )
        for name, check in checks
    )
    return [
        Section(
            title="Limits",
            text="A limit is met if it holds for the whole interval, and not shown if there are "
            "too few examples to tell.",
            table=Table(header=("graph", "limit", "measured", "verdict"), rows=rows),
        )
    ]


def _speed(targets: Sequence[TargetReport]) -> list[Section]:
    """Show the latency of each graph below that of float, for each shape."""
    pairs = [(each, shape) for each in targets for shape in each.latency]
    if not pairs:
        return []
    figures = []
    for batch, sequence in dict.fromkeys((shape.batch, shape.sequence) for _, shape in pairs):
        caption = f"{counted(batch, 'text')} of {sequence} tokens: milliseconds, less is better"
        bars = [
            bar
            for each, shape in pairs
            if (shape.batch, shape.sequence) == (batch, sequence)
            for bar in _latency_bars(each, shape)
        ]
        figures.append(Figure(caption=caption, svg=bar_plot(_distinct(bars), title=caption)))
        if batch > 1:
            figures.append(_throughput(pairs, batch, sequence))
    text = "Median latency of one inference, float and INT8 measured in turns."
    if any(each.engine == "native" for each in targets):
        text += " The engine native runs no float graph: its float latency is ONNX Runtime's."
    return [Section(title="How fast is it?", text=text, figures=tuple(figures))]


def _distinct(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars without those of a known name: graphs of one engine share its float."""
    return list({bar.label: bar for bar in reversed(bars)}.values())[::-1]


def _latency_bars(each: TargetReport, shape: LatencyReport) -> tuple[Bar, Bar]:
    before, after = f"{shape.float_ms:.1f} ms", f"{shape.int8_ms:.1f} ms ({shape.speedup:.2f} x)"
    return (
        Bar(label=_float_name(each), value=shape.float_ms, text=before, kind="float"),
        Bar(label=f"{graph_name(each)}, INT8", value=shape.int8_ms, text=after, kind="int8"),
    )


def _float_name(each: TargetReport) -> str:
    return f"float on {float_engine(each.engine)}"


def _throughput(
    pairs: Sequence[tuple[TargetReport, LatencyReport]], batch: int, sequence: int
) -> Figure:
    """Show how many texts each graph and float run in a second, in batches of one shape."""
    caption = (
        f"Texts per second in batches of {counted(batch, 'text')} of {sequence} tokens: "
        "more is better"
    )
    bars = []
    for each, shape in pairs:
        if (shape.batch, shape.sequence) == (batch, sequence):
            before, after = (1000 * batch / ms for ms in (shape.float_ms, shape.int8_ms))
            bars += [
                Bar(
                    label=_float_name(each),
                    value=before,
                    text=f"{before:,.0f} texts/s",
                    kind="float",
                ),
                Bar(
                    label=f"{graph_name(each)}, INT8",
                    value=after,
                    text=f"{after:,.0f} texts/s",
                    kind="int8",
                ),
            ]
    return Figure(caption=caption, svg=bar_plot(_distinct(bars), title=caption))


def _candidates(report: QuantizeReport) -> list[Section]:
    """Show what the target `auto` chose from."""
    if not report.candidates:
        return []
    alone = "One text at a time: milliseconds, less is better"
    together = "Many texts: texts per second, more is better"
    times = [
        _candidate_bar(each, each.single_ms, f"{each.single_ms:.2f} ms")
        for each in report.candidates
    ]
    speeds = [
        _candidate_bar(each, each.texts_per_second, f"{each.texts_per_second:,.0f} texts/s")
        for each in report.candidates
    ]
    rows: tuple[tuple[str, ...], ...] = tuple(
        (_candidate_name(each), each.target, f"{each.relative_time:.2f}", each.verdict, each.reason)
        for each in report.candidates
    )
    header: tuple[str, ...] = ("candidate", "target", "relative time", "verdict", "reason")
    if not any(each.reason for each in report.candidates):
        header, rows = header[:-1], tuple(row[:-1] for row in rows)
    return [
        Section(
            title="What was it chosen from?",
            text=f"{report.reason or ''} Relative time is the geometric mean of the times for one "
            "text and for many, divided by that of the fastest candidate.",
            figures=(
                Figure(caption=alone, svg=bar_plot(times, title=alone)),
                Figure(caption=together, svg=bar_plot(speeds, title=together)),
            ),
            table=Table(header=header, rows=rows),
        )
    ]


def _changed(each: TargetReport) -> list[Section]:
    """Show examples whose prediction changed."""
    if not each.changed:
        return []
    rows = tuple((example.text, example.before, example.after) for example in each.changed)
    return [
        Section(
            title="Which predictions changed?",
            text=f"Held-out examples whose prediction by {graph_name(each)} differs from float's, "
            "at most ten, the largest change first.",
            table=Table(header=("example", "float", "INT8"), rows=rows),
        )
    ]


def _candidate_bar(each: CandidateReport, value: float, text: str) -> Bar:
    kind: Kind = "float" if each.recipe == "float" else "int8"
    return Bar(label=_candidate_name(each), value=value, text=text, kind=kind)


def _candidate_name(each: CandidateReport) -> str:
    kind = each.precision if each.recipe == "float" else f"INT8 {each.recipe}"
    is_named = each.target == each.engine or each.recipe == "float"
    return f"{each.engine if is_named else each.target}, {kind}"


def _sizes(report: QuantizeReport) -> Section:
    caption = "Size on disk, in megabytes"
    size = report.float_size_bytes
    bars = [Bar(label="float", value=size, text=size_text(size), kind="float")]
    sizes = {each.target: each.size_bytes for each in report.targets}
    bars += [
        Bar(label=target, value=size, text=size_text(size), kind="int8")
        for target, size in sizes.items()
    ]
    figure = Figure(caption=caption, svg=bar_plot(bars, title=caption))
    return Section(title="How large is it?", figures=(figure,))


def _layers(targets: Sequence[TargetReport]) -> Section:
    """Show the noise of layers, once for the targets that quantize in the same way."""
    same: dict[tuple[tuple[LayerFidelity, ...], tuple[Sensitivity, ...]], list[str]] = {}
    for each in targets:
        names = same.setdefault((each.layers, each.sensitivity), [])
        names += [each.target] * (each.target not in names)
    figures = []
    for (layers, parts), names in same.items():
        caption = f"SQNR to float after each layer, in dB: {', '.join(names)}"
        values = [(each.name, each.sqnr_db) for each in layers]
        figures.append(Figure(caption=caption, svg=line_plot(values, title=caption, unit="dB")))
        if parts:
            figures.append(_sensitivity(parts, names))
    return Section(
        title="Where does it differ?",
        text="Point 0 is the embeddings, points 1 and up the layers, and the last points are the "
        "outputs. Each point contains the noise of all layers before it. Bars show the outputs if "
        "only one part of the model is INT8: the shortest bar is the part that costs most. "
        "The command analyze does the same for each linear layer. The values are those of "
        "PyTorch's fake quantization, with which every engine is compared layer by layer.",
        figures=tuple(figures),
    )


def _sensitivity(parts: Sequence[Sensitivity], names: Sequence[str]) -> Figure:
    caption = f"SQNR to float with one part in INT8, in dB, more is better: {', '.join(names)}"
    bars = [
        Bar(label=each.name, value=each.sqnr_db, text=f"{each.sqnr_db:.1f} dB", kind="int8")
        for each in parts
        # A part without any noise costs nothing.
        if math.isfinite(each.sqnr_db)
    ]
    return Figure(caption=caption, svg=bar_plot(bars, title=caption))


def _batches(targets: Sequence[TargetReport]) -> Section:
    rows = []
    for each in targets:
        found = each.batch_invariance
        decisions = "" if found.changed_decisions is None else str(found.changed_decisions)
        differing = f"{found.differing} of {found.texts}"
        rows.append((graph_name(each), differing, f"{found.largest_difference:.1g}", decisions))
    return Section(
        title="Does a result depend on the other texts of its batch?",
        text="Each text ran in a batch with other texts and padding, and alone.",
        table=Table(
            header=("graph", "texts that differ", "largest difference", "changed decisions"),
            rows=tuple(rows),
        ),
    )


def _saturation(targets: Sequence[TargetReport]) -> Section:
    rows = []
    for each in targets:
        native = f"{each.lowering.native_db:.1f} dB"
        here = f"yes ({native})" if each.lowering.saturates else f"no ({native})"
        rows.append((graph_name(each), here, _overflows(each)))
    return Section(
        title="Do its sums saturate?",
        text="CPUs without VNNI add int8 products in 16 bits, which can be too few. The number in "
        "parentheses is the SQNR to exact arithmetic in the worst layer on this CPU.",
        table=Table(header=("graph", "on this CPU", "on CPUs without VNNI"), rows=tuple(rows)),
    )


def _overflows(each: TargetReport) -> str:
    if each.overflows is None:
        is_for_cpus = target_named(each.target).adjacent_sum_limit is not None
        return "no: weights are exact on all CPUs" if is_for_cpus else "not for CPUs"
    found = [f"{layer.site}: {layer.percent:.3f} % of the sums" for layer in each.overflows]
    return "\n".join(found) or "no, on these texts"


def _measurements(report: QuantizeReport) -> Section:
    names = tuple(graph_name(each) for each in report.targets)
    rows = tuple((name, *values) for name, values in comparison_rows(report).items())
    return Section(title="All measurements", table=Table(header=("", *names), rows=rows))


def _metrics(report: EvaluateReport) -> Section:
    named = {each.name: [("model", each)] for each in report.differences}
    figures = _difference_figures(named, report.limits)
    fidelity = report.fidelity
    if fidelity is not None and fidelity.flips_percent is not None:
        assert fidelity.flips_interval is not None
        caption = f"{changed_predictions(fidelity, report.task)}, in percent"
        row = _measured("model", fidelity.flips_percent, fidelity.flips_interval)
        figures.append(
            _interval_figure(caption, [row], " %", _limit_on("max_flips", report.limits))
        )
    columns = 2 if report.reference is None else 4
    header = ("", "model", "reference", "difference or interval (95 %)")[:columns]
    rows = tuple(dataclasses.astuple(row)[:columns] for row in evaluation_rows(report))
    return Section(
        title="Measurements",
        figures=tuple(figures),
        table=Table(header=header, rows=rows),
    )


def _lengths(report: QuantizeReport) -> Section:
    lengths = report.calibration_lengths
    assert lengths is not None
    caption = f"Lengths of {counted(lengths.texts, 'calibration text')}, in tokens"
    svg = histogram_plot(lengths.edges, lengths.counts, title=caption, unit="tokens")
    return Section(
        title="What was it calibrated on?",
        text=f"The texts have {lengths.shortest} to {lengths.longest} tokens, and a median of "
        f"{lengths.median:g}. Ranges fit texts of these lengths and this kind best. Truncated, as "
        f"they were longer than the limit: {counted(lengths.truncated, 'text')}.",
        figures=(Figure(caption=caption, svg=svg),),
    )


def _environment(
    cpu: str, features: Sequence[str], cores: int, versions: Mapping[str, str]
) -> Section:
    rows = [("CPU", cpu), ("its features for INT8", ", ".join(features)), ("cores", str(cores))]
    return Section(
        title="Where was it measured?", table=Table(header=(), rows=(*rows, *versions.items()))
    )


def _terms() -> Section:
    return Section(title="What do the words mean?", table=Table(header=(), rows=_TERMS))
