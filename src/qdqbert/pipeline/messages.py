"""Say in words what a user should know about the graphs of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqbert.common.machine import cpu_features, has_int8_products
from qdqbert.engines.registry import install_command, is_installed
from qdqbert.evidence.closeness import FAR_DB
from qdqbert.evidence.fidelity import MANY_CHANGED_PERCENT
from qdqbert.evidence.limits import LimitCheck
from qdqbert.evidence.lowering import LoweringCheck
from qdqbert.evidence.reporting.comparison import examples_needed, limit_text
from qdqbert.evidence.reports import TargetReport
from qdqbert.evidence.saturation import Overflow
from qdqbert.graphs.targets import target_named
from qdqbert.graphs.targets.target import Target
from qdqbert.pipeline.ranges import RangeKind
from qdqbert.tasks.task import Metric

# With fewer calibration examples than this, the report warns.
_FEWEST_CALIBRATED = 16
# Below this share of int8 multiplications, a graph is more float than INT8.
_FEW_INT8_PERCENT = 50.0
# Remedies for a graph that is far from float, by the source of its ranges.
_HINTS: Mapping[RangeKind, str] = {
    "calibrated": "Calibrate on more and typical examples",
    "stored": "Train the quantized model for longer, calibrate again with `recalibrate=True`",
    "earlier": "Leave `ranges_from` out to calibrate on more and typical examples",
}


def engine_notices(target: Target) -> list[str]:
    """Say on which engines a target was not measured."""
    notices = []
    if not target.engines:
        notices.append(
            f"Nothing was measured for target {target.name}: its graph runs on {target.summary}, "
            "and on no engine of this package."
        )
    if target.engines and target.is_proxy:
        notices.append(
            f"The numbers of target {target.name} were measured on {', '.join(target.engines)} on "
            "the CPU, as a proxy for its own runtime. No GPU has run the graph in this call. Check "
            "its metric and its latency where it will run."
        )
    return notices + [
        f"Engine {engine} is not installed, so nothing was measured on it. Install it with: "
        f"{install_command(engine)}"
        for engine in target.engines
        if not is_installed(engine)
    ]


def fidelity_warnings(report: TargetReport, ranges: RangeKind = "calibrated") -> list[str]:
    """Warn about a graph that is far from the float model.

    What its engine makes of it and where its ranges come from decide about the advice.
    """
    fidelity = report.fidelity
    interval = fidelity.flips_interval
    # A few changed predictions of a few show little, such as 4 of 64 answers.
    surely_changed = 0.0 if interval is None else interval.low
    if fidelity.sqnr_db >= FAR_DB and surely_changed <= MANY_CHANGED_PERCENT:
        return []
    found = f"{fidelity.sqnr_db:.1f} dB SQNR"
    if fidelity.flips_percent is not None:
        found += f", {fidelity.flips_percent:.1f} % of the predictions changed"
    advice = f"{_HINTS[ranges]}, or pass another `recipe`"
    if report.lowering.far:
        advice = f"The cause is {report.engine}, and not the calibration: pass other `targets`"
    return [
        f"The {report.codes} graph for {report.target} on {report.engine} is far from the float "
        f"model ({found}). {advice}, and check the task's metric with `qdqbert evaluate` before "
        "you use it."
    ]


def share_warnings(report: TargetReport) -> list[str]:
    """Warn about a graph of which less than half is INT8."""
    share = report.int8_percent
    if share is None or share >= _FEW_INT8_PERCENT or report.is_float:
        return []
    return [
        f"Only {share:.0f} % of the multiplications of {report.target} are INT8, so it is hardly "
        "smaller or faster than float. Pass limits that more layers meet, or another `recipe`."
    ]


def report_notices(report: TargetReport) -> list[str]:
    """Say what a user should know about a graph's arithmetic and speed."""
    notices = []
    lowering: LoweringCheck = report.lowering
    if lowering.far:
        found = dict(lowering.to_float)
        pytorch = found.pop("pytorch")
        measured = " and ".join(f"{each:.1f} dB in {name}" for name, each in found.items())
        notices.append(
            f"On {report.engine} the graph for {report.target} has an SQNR to float of {measured}, "
            f"where PyTorch gets {pytorch:.1f} dB from the same Q/DQ pairs. The cause is the "
            "engine, and another calibration does not change it. Pass other `targets`."
        )
    elif not lowering.is_exact:
        notices.append(
            f"On {report.engine} the graph differs from its Q/DQ pairs: "
            f"{lowering.worst_layer_db:.1f} dB at `{lowering.worst_layer}`, where "
            f"{lowering.wanted_db:.1f} dB are expected. Compare it with the float model by "
            "`qdqbert evaluate`, or pass other `targets` or another `recipe`."
        )
    if lowering.saturates:
        notices.append(
            f"On this CPU the int8 sums of {report.engine} saturate: {lowering.native_db:.1f} dB, "
            f"where exact arithmetic gives {lowering.worst_layer_db:.1f} dB."
        )
    notices += _batch_notice(report)
    slower = [each for each in report.latency if each.int8_ms > each.float_ms]
    # The target `float` is timed against itself.
    if slower and target_named(report.target).quantizes != "nothing":
        shapes = " and ".join(
            f"{each.shape} ({each.float_ms / each.int8_ms:.2f} x)" for each in slower
        )
        reason = (
            "This CPU has int8 instructions, so the model or these shapes are too small for them, "
            "or something else ran while they were measured."
            if has_int8_products(cpu_features())
            else "Its int8 kernels are faster on CPUs with int8 instructions: VNNI or AMX on x86, "
            "dot products on ARM."
        )
        notices.append(
            f"On this machine {report.engine} runs INT8 slower than it runs float, with {shapes}. "
            f"{reason}"
        )
    varied = [each for each in report.latency if each.varied]
    if varied:
        shapes = " and ".join(each.shape for each in varied)
        notices.append(
            f"Timings of {report.engine} with {shapes} varied, as if something else ran on this "
            "machine: the medians and the ratio of the rounds differ. Measure again with `qdqbert "
            "benchmark`."
        )
    return notices


def _batch_notice(report: TargetReport) -> list[str]:
    """Warn about results that depend on the batch, if decisions do or scales are dynamic."""
    found = report.batch_invariance
    is_dynamic = report.target == "onnxruntime-dynamic"
    if found.is_exact or not (found.changed_decisions or is_dynamic):
        return []
    changed = ""
    if found.changed_decisions is not None:
        changed = f", and {found.changed_decisions} decisions change"
    other = "use the target onnxruntime, whose scales are fixed, or " if is_dynamic else ""
    return [
        f"With {report.target} on {report.engine}, the result for a text depends on the other "
        f"texts of its batch: {found.differing} of {found.texts} texts differ from their results "
        f"alone, by up to {found.largest_difference:.2g}{changed}. For results that never depend "
        f"on a batch, {other}`run` or load the folder with "
        "`batch_invariant=True`."
    ]


def saturation_notice(target: str, layers: Sequence[Overflow]) -> str:
    """Say where a target would saturate on CPUs without VNNI."""
    worst = ", ".join(f"{each.site} ({each.percent:.3f} %)" for each in layers[:3])
    where = (
        f"in {len(layers)} linear layers, most in {worst}"
        if layers
        else "in no linear layer on this data"
    )
    return (
        f"The {target} graph is encoded for CPUs with VNNI. On other CPUs int8 sums would "
        f"saturate {where}. With `weights_for='any'`, weights are exact everywhere."
    )


def limit_warnings(checks: Sequence[LimitCheck], metrics: Sequence[Metric]) -> list[str]:
    """Warn about limits that are not shown, even for the float model itself."""
    return [
        f"Too few examples to show {limit_text(each, metrics)}, even if INT8 equals float. "
        f"{examples_needed(each).capitalize()} would show it, or more if predictions change. "
        "Nothing will be written but the report."
        for each in checks
        if each.verdict != "met"
    ]


def sample_warnings(count: int) -> list[str]:
    """Warn about ranges of so few texts that they may not be typical."""
    if count >= _FEWEST_CALIBRATED:
        return []
    texts = "1 text" if count == 1 else f"{count} texts"
    return [
        f"The ranges were taken from {texts} only. Pass at least 100 typical examples as "
        "`calibration_data`."
    ]
