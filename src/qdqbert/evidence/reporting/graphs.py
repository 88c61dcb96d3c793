"""Parts of the report of `quantize`: tables of one kind of measurement of graphs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from qdqbert.engines.registry import float_engine
from qdqbert.evidence.batch_invariance import BatchInvariance
from qdqbert.evidence.lengths import TextLengths
from qdqbert.evidence.reporting import comparison
from qdqbert.evidence.reporting.document import MEGABYTE, Cell, Section, Table, bar, counted
from qdqbert.evidence.reports import CandidateReport, LatencyReport, TargetReport
from qdqbert.graphs.targets import target_named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Winner:
    """The fastest graph of a report.

    Attributes:
        name: Its name.
        engine: Engine that runs it.
        ratio: How many times as fast it is as the float model on its best engine; `None` if the
            float model was not timed.
        reference: The best engine of the float model.
        is_fastest: Whether no faster one was rejected.
    """

    name: str
    engine: str
    ratio: float | None
    reference: str
    is_fastest: bool = True


def graph_name(each: TargetReport | CandidateReport) -> str:
    """Return the name of a graph: its engine, and its target if that has another name."""
    return each.engine if each.target == each.engine else f"{each.target} on {each.engine}"


def unmet_text(targets: Sequence[TargetReport]) -> str:
    """Return a sentence about the limit that is missed, or else not met by INT8, or not shown."""
    unmet = [each for each in targets if any(check.verdict != "met" for check in each.limits)]
    missed = [each for each in unmet if any(check.verdict == "missed" for check in each.limits)]
    in_float = [each for each in targets if each.is_float]
    return in_float_text(in_float[0]) if in_float and not missed else comparison.unmet_text(unmet)


def unmet_limits(each: TargetReport) -> str:
    """Return sentences about the limits that a graph does not meet; empty if it meets all."""
    return in_float_text(each) if each.is_float else comparison.unmet_limits(each)


def in_float_text(each: TargetReport) -> str:
    """Say that the limits of a graph are met by the float model only."""
    limits = " and ".join(comparison.limit_text(check, each.metrics) for check in each.limits)
    return (
        f"{each.codes} cannot meet {limits}: only {each.int8_percent:.0f} % of the multiplications "
        f"would stay in {each.codes}"
    )


def by_speed(targets: Sequence[TargetReport]) -> list[TargetReport]:
    """Return the graphs with the fastest one first, and those that were not timed last."""
    return sorted(targets, key=lambda each: (not each.latency, _mean_ms(each, "int8_ms")))


def find_winner(targets: Sequence[TargetReport]) -> Winner | None:
    """Return the fastest graph, by the geometric mean over the shapes; `None` without timings."""
    timed = [each for each in by_speed(targets) if each.latency]
    if not timed:
        return None
    slow = _best_float(timed)
    return Winner(
        name=graph_name(timed[0]),
        engine=timed[0].engine,
        ratio=_mean_ms(slow, "float_ms") / _mean_ms(timed[0], "int8_ms"),
        reference=float_engine(slow.engine),
    )


def _best_float(timed: Sequence[TargetReport]) -> TargetReport:
    """Return the graph whose timing of the float model is the fastest."""
    return min(timed, key=lambda each: _mean_ms(each, "float_ms"))


def _mean_ms(each: TargetReport, field: str) -> float:
    """Return the geometric mean of latencies; 0 if there are none."""
    times = [getattr(shape, field) for shape in each.latency]
    return statistics.geometric_mean(times) if times else 0.0


def speed(targets: Sequence[TargetReport], float_bytes: int) -> Section:
    """Compare latencies and sizes with the float model's on its best engine."""
    timed = [each for each in targets if each.latency]
    slow = _best_float(timed) if timed else None
    rows: list[tuple[str | Cell | None, ...]] = []
    for shape in slow.latency if slow else ():
        found = [_at(each, shape) for each in targets]
        times = (None if each is None else _time(shape.float_ms, each) for each in found)
        rows.append((shape.shape, bar(shape.float_ms, _milliseconds(shape.float_ms)), *times))
        if shape.batch > 1:
            latencies = [shape.float_ms, *(x.int8_ms if x else None for x in found)]
            speeds = (None if ms is None else 1000 * shape.batch / ms for ms in latencies)
            cells = (None if x is None else bar(x, "{:,.0f}/s") for x in speeds)
            rows.append(("the same, in texts per second", *cells))
    sizes = (
        bar(each.size_bytes / MEGABYTE, f"{{:.1f}} MB ({each.size_ratio:.2f})") for each in targets
    )
    rows.append(("size", bar(float_bytes / MEGABYTE, "{:.1f} MB"), *sizes))
    rows.append(("recipe", None, *(each.recipe for each in targets)))
    if any(each.int8_percent is not None for each in targets):
        shares = (
            None if each.int8_percent is None else bar(each.int8_percent, "{:.0f} %")
            for each in targets
        )
        rows.append(("multiplications in INT8", None, *shares))
    if any(each.units_in_float for each in targets):
        units = ("\n".join(each.units_in_float) for each in targets)
        rows.append(("left in float to meet the limits", None, *units))
    # The target `float` has a column of its own, "float on openvino".
    on = f"float model on {float_engine(slow.engine)}" if slow else "float model"
    names = " | ".join(f"{each} {{}}" for each in (on, *map(graph_name, targets)))
    text = "Median latency of one inference. Times as fast as float are in parentheses."
    table = Table(f" | {names}", rows, compares_rows=True)
    return Section(
        f"How {'fast and how ' if slow else ''}large is it?", text if slow else "", table
    )


def latency_row(each: LatencyReport) -> tuple[str, Cell, Cell]:
    """Return a row with the latency of float, and of INT8 on the same engine."""
    slow = bar(each.float_ms, _milliseconds(each.float_ms))
    return each.shape, slow, _time(each.float_ms, each)


def _milliseconds(value: float) -> str:
    """Return the format of a latency: with two digits at least, so that models differ."""
    return "{:.1f} ms" if value >= 1 else "{:.2f} ms"


def _range_name(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _at(each: TargetReport, shape: LatencyReport) -> LatencyReport | None:
    """Return the latency at the same shape as another one."""
    sizes = (shape.batch, shape.sequence)
    return next((x for x in each.latency if (x.batch, x.sequence) == sizes), None)


def _time(float_ms: float, each: LatencyReport) -> Cell:
    varied = ", timings varied" if each.varied else ""
    times = f"({float_ms / each.int8_ms:.2f} x{varied})"
    return bar(each.int8_ms, f"{_milliseconds(each.int8_ms)} {times}")


# Names of kinds of vectors, with their bits per dimension.
_KINDS_OF_VECTORS = {
    "float32": ("float32", 32),
    "int8": ("int8", 8),
    "int8_per_dimension": ("int8, a range for each dimension", 8),
    "int8_restored": ("the same, values restored from the codes", 8),
    "binary": ("binary", 1),
}


def recall_sections(targets: Sequence[TargetReport]) -> list[Section]:
    """Show what small vectors cost."""
    known = [(graph_name(each), each.recall) for each in targets if each.recall is not None]
    if not known:
        return []
    texts, dimensions = known[0][1].texts, known[0][1].dimensions
    rows = [
        (
            title,
            f"{math.ceil(bits * dimensions / 8):,}",
            *(bar(getattr(found, name), "{:.1f} %") for _, found in known),
        )
        for name, (title, bits) in _KINDS_OF_VECTORS.items()
    ]
    text = (
        f"Recall@10 on {texts:,} held-out texts: the share of the 10 nearest texts by the float "
        "model's embeddings that are also among the 10 nearest by vectors of INT8."
    )
    names = " | ".join(f"{name} {{}}" for name, _ in known)
    return [Section("What do small vectors cost?", text, Table(f"vectors | bytes | {names}", rows))]


def checks(targets: Sequence[TargetReport]) -> Section:
    """Show whether graphs compute what they should."""
    rows = [
        (
            graph_name(each),
            f"{each.lowering.worst_layer_db:.1f} dB"
            f"{'' if each.lowering.is_exact else ' (too low!)'}",
            _batches(each.batch_invariance),
            f"{'yes' if each.lowering.saturates else 'no'} ({each.lowering.native_db:.1f} dB)",
            _overflows(each),
        )
        for each in targets
    ]
    columns = (
        "graph | worst layer | results that depend on the batch | sums saturate here | "
        "on CPUs without VNNI"
    )
    text = (
        "Every layer is compared with PyTorch's fake quantization, by SQNR. Each text ran in a "
        "batch with other texts and padding, and alone. CPUs without VNNI add int8 products in 16 "
        "bits, which can overflow; in parentheses is the SQNR to exact arithmetic."
    )
    return Section("Does it compute what it should?", text, Table(columns, rows), is_folded=True)


def _batches(found: BatchInvariance) -> str:
    if found.is_exact:
        return f"none of {found.texts}"
    decisions = f", {found.changed_decisions} decisions" if found.changed_decisions else ""
    differing = f"{found.differing} of {found.texts}{decisions}"
    return f"{differing}, by up to {found.largest_difference:.1g}"


def _overflows(each: TargetReport) -> str:
    if each.overflows is None:
        is_for_cpus = target_named(each.target).adjacent_sum_limit is not None
        return "no, exact on all CPUs" if is_for_cpus else "not for CPUs"
    found = [f"{layer.site}: {layer.percent:.3f} % of the sums" for layer in each.overflows]
    return "\n".join(found) or "no, on these texts"


def layer_sections(targets: Sequence[TargetReport]) -> list[Section]:
    """Show the noise of layers, once for the targets that quantize in the same way."""
    same: dict[tuple[tuple[str, float], ...], dict[str, None]] = {}
    for each in targets:
        after = [(f"after {layer.name}", layer.sqnr_db) for layer in each.layers]
        only = [(f"only {part.name} in {each.codes}", part.sqnr_db) for part in each.sensitivity]
        same.setdefault((*after, *only), {})[each.target] = None
    text = (
        "SQNR to float, of PyTorch's fake quantization. After a layer, it contains the noise of "
        "all layers before. With only one part in INT8, it is the SQNR of the outputs: the part "
        "with the shortest bar costs most. The command analyze measures each linear layer."
    )
    return [
        Section(
            f"Where does it differ? ({', '.join(names)})",
            text,
            Table("part | SQNR {}", [(name, bar(level, "{:.1f} dB")) for name, level in levels]),
            is_folded=True,
        )
        for levels, names in same.items()
    ]


def length_sections(found: TextLengths | None) -> list[Section]:
    """Show the lengths of the texts that ranges were taken from."""
    if found is None:
        return []
    text = (
        f"The {counted(found.texts, 'text')} have {found.shortest} to {found.longest} tokens, and "
        f"a median of {found.median:g}. Ranges fit texts of these lengths and this kind best. "
        f"Truncated, as they were longer than the limit: {counted(found.truncated, 'text')}."
    )
    bins = zip(found.edges[:-1], found.edges[1:], found.counts, strict=True)
    rows = [(_range_name(low, high - 1), bar(count, "{}")) for low, high, count in bins]
    table = Table("tokens | texts {}", rows)
    return [Section("What was it calibrated on?", text, table, is_folded=True)]
