"""Measure the graphs that were written: agreement with PyTorch, fidelity, speed and size."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qdqbert.artifact import size_bytes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.choices import ENGINE_NAMES, EngineName
from qdqbert.encoding import Batch, first_rows
from qdqbert.engines.runner import float_engine, install_command, is_installed, open_runner
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.limits import check_limits
from qdqbert.evidence.lowering import LoweringCheck, Reference, check_lowering, layer_fidelity
from qdqbert.evidence.reports import LatencyReport, Sensitivity, TargetReport
from qdqbert.evidence.saturation import Overflow
from qdqbert.evidence.verification import VerificationRow, measure_rows
from qdqbert.machine import cpu_features, has_int8_products, release_memory
from qdqbert.options import Limits
from qdqbert.progress import Progress
from qdqbert.search.units import Unit
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan, Target
from qdqbert.task_kinds import TASK_KINDS
from qdqbert.tokenizing.tokenizer import Tokenizer
from qdqbert.verbs.inference import Baseline, batch_invariance_of, predict
from qdqbert.verbs.quantize.graphs import WrittenGraph
from qdqbert.verbs.quantize.ranges import RangeKind
from qdqbert.verbs.quantize.sensitivity import layer_sensitivity
from qdqbert.verbs.quantize.source import ModelSource
from qdqbert.verbs.quantize.source.sited import SitedSource

# Name of the float graph among the graphs that are timed, which no target has.
_REFERENCE = "reference"
_SHAPES = ((1, 32), (8, 128))
_ROUNDS = 3
# The layer check keeps the states of all layers in memory, for this number of tokens in a batch.
_CHECKED_BATCHES = 2
_CHECKED_TOKENS = 1024
# The sensitivity runs the model once for each layer, on this number of tokens of these batches.
_SENSITIVITY_TOKENS = 256
# Texts that run alone, to see whether their results depend on their batch.
_TEXTS_ALONE = 64
# Below this SQNR, or if the interval of changed predictions is above this percentage, a model is
# hardly usable. A few changed predictions of a few show little, such as 4 of 64 answers.
_LOW_SQNR_DB = 10.0
_HIGH_CHANGED_PERCENT = 5.0
# What to do about a graph that is far from float, by where its ranges come from.
_HINTS: Mapping[RangeKind, str] = {
    "calibrated": "Calibrate on more and typical examples",
    "stored": "Train the quantized model for longer, calibrate again with `recalibrate=True`",
    "earlier": "Leave `ranges_from` out to calibrate on more and typical examples",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The float model and the examples that graphs are compared on.

    Attributes:
        source: The float model.
        sited: The float model with sites.
        calibration: Ranges of the call.
        baseline: The float model's results on examples that were not calibrated on.
        float_model: File of the float graph.
        tokenizer: Tokenizer of the model.
        max_length: Longest input in tokens.
        ranges: Where the ranges come from.
        limits: Limits of the call.
        units_in_float: Units that were left in float to meet the limits, by name of the target.
        overflows: Linear layers that would saturate without VNNI, by name of the target, for the
            targets where this can happen.
        rows: Rows that `verify` runs again.
    """

    source: ModelSource
    sited: SitedSource
    calibration: CalibrationResult
    baseline: Baseline
    float_model: Path
    tokenizer: Tokenizer
    max_length: int
    ranges: RangeKind
    limits: Limits
    units_in_float: Mapping[str, Sequence[Unit]]
    overflows: Mapping[str, tuple[Overflow, ...]]
    rows: Sequence[VerificationRow]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _InPyTorch:
    """Results of PyTorch's fake quantization under a plan.

    Attributes:
        plan: The plan.
        references: Its results, layer by layer, on batches of different lengths.
        floats: The float model's results on the same batches.
        sensitivity: What each layer costs.
    """

    plan: Plan
    references: list[Reference]
    floats: list[Reference]
    sensitivity: tuple[Sensitivity, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurements:
    """Results of `measure`.

    Attributes:
        reports: One for each graph and each installed engine that runs it.
        warnings: Results that make a graph doubtful or useless.
        notices: Other messages for the user.
    """

    reports: tuple[TargetReport, ...]
    warnings: tuple[str, ...]
    notices: tuple[str, ...]


def measure(
    written: Sequence[WrittenGraph],
    evidence: Evidence,
    *,
    benchmark: bool,
    progress: Progress,
) -> Measurements:
    """Measure each graph on each installed engine that runs it.

    Args:
        written: The graphs.
        evidence: What they are compared with.
        benchmark: Whether to measure latency.
        progress: Receives the stages.
    """
    jobs = [(each, engine) for each in written for engine in _installed_engines(each.plan.target)]
    timed = [job for job in jobs if not job[0].plan.target.is_proxy]
    timings = _time(timed, evidence, progress) if benchmark and timed else []
    known: list[_InPyTorch] = []
    baseline, reports = evidence.baseline, []
    for each, engine in jobs:
        title = f"Checking {each.plan.target.name} on {engine}"
        with progress.stage(title, len(baseline.encoded.batches)) as advance:
            in_pytorch = _in_pytorch(each.plan, evidence, known)
            reports.append(_check(each, engine, evidence, in_pytorch, timings, advance))
    return _with_messages(written, reports, evidence.ranges)


def _with_messages(
    written: Sequence[WrittenGraph], reports: Sequence[TargetReport], ranges: RangeKind
) -> Measurements:
    """Return reports with the messages about them."""
    notices = [notice for each in written for notice in _engine_notices(each.plan.target)]
    notices += [notice for each in reports for notice in _notices(each)]
    return Measurements(
        reports=tuple(reports),
        warnings=tuple(warning for each in reports for warning in fidelity_warnings(each, ranges)),
        notices=tuple(notices),
    )


def without_missed(
    written: Sequence[WrittenGraph], measured: Measurements, ranges: RangeKind
) -> tuple[list[WrittenGraph], Measurements]:
    """Leave out graphs that do not meet the limits, and remove their files, if another one does.

    Some targets run all linear layers in int8, and can only miss a limit.

    Args:
        written: The graphs.
        measured: What was measured.
        ranges: Where the ranges come from.
    """
    missed = {each.target: found for each in measured.reports if (found := unmet_limits(each))}
    kept = [each for each in written if each.plan.target.name not in missed]
    if not missed or not kept:
        return list(written), measured
    for each in written:
        if each.plan.target.name in missed:
            shutil.rmtree(each.path.parent)
    reports = [each for each in measured.reports if each.target not in missed]
    left = _with_messages(kept, reports, ranges)
    notices = (f"Target {name} is left out: {found}." for name, found in missed.items())
    return kept, dataclasses.replace(left, notices=(*left.notices, *notices))


def unmet_limits(report: TargetReport) -> str:
    """Return which limits a graph does not meet, with what was measured; empty if it meets all."""
    return ", ".join(
        f"{each.option} {each.limit:g}: {each.verdict}, {each.value:.4g}"
        for each in report.limits
        if each.verdict != "met"
    )


def _check(
    graph: WrittenGraph,
    engine: EngineName,
    evidence: Evidence,
    in_pytorch: _InPyTorch,
    timings: Sequence[Timing],
    advance: Callable[[], None],
) -> TargetReport:
    """Compare one graph on one engine with the float model and with PyTorch's fake quantization."""
    target, baseline = graph.plan.target.name, evidence.baseline
    runner = open_runner(engine, graph.path, low_memory=True)
    predictions = predict(baseline.task, runner, baseline.encoded, advance)
    invariance = batch_invariance_of(
        baseline.task, runner, baseline.encoded, predictions, baseline.options, texts=_TEXTS_ALONE
    )
    rows = evidence.rows
    verification_db = measure_rows(runner, rows) if rows else None
    # It holds the weights, of which the layer check loads two more copies.
    del runner
    release_memory()
    comparison = baseline.compare(predictions)
    fidelity, differences = comparison.fidelity, comparison.differences
    return TargetReport(
        target=target,
        engine=engine,
        recipe=graph.plan.recipe.name,
        units_in_float=tuple(unit.name for unit in evidence.units_in_float.get(target, ())),
        model=graph.name,
        fidelity=fidelity,
        metrics=comparison.metrics,
        differences=differences,
        limits=check_limits(evidence.limits, fidelity, differences),
        layers=layer_fidelity(in_pytorch.references, in_pytorch.floats),
        sensitivity=in_pytorch.sensitivity,
        lowering=check_lowering(
            graph.path,
            in_pytorch.references,
            engine,
            agreement_db=graph.plan.target.agreement_db,
        ),
        overflows=evidence.overflows.get(target),
        batch_invariance=invariance,
        size_bytes=graph.size_bytes,
        size_ratio=graph.size_bytes / size_bytes(evidence.float_model),
        latency=tuple(_latency(timings, graph.plan, engine)),
        verification_db=verification_db,
        changed=baseline.changed(predictions, evidence.tokenizer),
    )


def _engine_notices(target: Target) -> list[str]:
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


def _installed_engines(target: Target) -> list[EngineName]:
    return [engine for engine in target.engines if is_installed(engine)]


def _time(
    jobs: Sequence[tuple[WrittenGraph, EngineName]],
    evidence: Evidence,
    progress: Progress,
) -> list[Timing]:
    """Time the float graph on each engine that runs it and every INT8 graph alternately."""
    used = {float_engine(engine) for _, engine in jobs}
    engines = [engine for engine in ENGINE_NAMES if engine in used]
    models = [(_REFERENCE, engine, evidence.float_model) for engine in engines]
    models += [(str(each.plan.target.name), engine, each.path) for each, engine in jobs]
    candidates = [
        Candidate(
            name=name,
            engine=engine,
            model=model,
            vocab_size=evidence.source.config.vocab_size,
            choices=TASK_KINDS[evidence.source.task].choices,
        )
        for name, engine, model in models
    ]
    longest = evidence.max_length
    shapes = list(dict.fromkeys((batch, min(sequence, longest)) for batch, sequence in _SHAPES))
    total = len(candidates) * len(shapes) * _ROUNDS
    with progress.stage("Timing float and INT8", total) as advance:
        return time_candidates(candidates, shapes, rounds=_ROUNDS, advance=advance)


def _latency(timings: Sequence[Timing], plan: Plan, engine: EngineName) -> list[LatencyReport]:
    """Pair the timings of one graph with the float graph's."""
    mine: Mapping[str, list[Timing]] = {
        name: [each for each in timings if each.name == name and each.engine == used]
        for name, used in ((_REFERENCE, float_engine(engine)), (plan.target.name, engine))
    }
    if plan.target.is_proxy:
        return []
    return [
        LatencyReport(
            batch=fast.batch,
            sequence=fast.sequence,
            float_ms=slow.median_ms,
            int8_ms=fast.median_ms,
            speedup=speedup(slow, fast),
        )
        for slow, fast in zip(mine[_REFERENCE], mine[plan.target.name], strict=True)
    ]


def _in_pytorch(plan: Plan, evidence: Evidence, known: list[_InPyTorch]) -> _InPyTorch:
    """Run a plan in PyTorch, or return known results.

    They depend neither on the engine nor on the target: targets often have the same specs.

    Args:
        plan: The plan.
        evidence: The float model and its examples.
        known: Results of earlier plans. New ones are appended.
    """
    ranges = evidence.calibration.for_recipe
    calibration = ranges(plan.recipe)
    for each in known:
        if (
            plan.specs == each.plan.specs
            and plan.target.last_bits == each.plan.target.last_bits
            and calibration is ranges(each.plan.recipe)
        ):
            return each
    sited = evidence.sited
    checked = _checked_batches(evidence, _CHECKED_TOKENS)
    made = _InPyTorch(
        plan=plan,
        references=sited.references(plan, calibration, checked),
        floats=known[0].floats if known else _float_references(plan, evidence),
        sensitivity=layer_sensitivity(
            plan,
            sited,
            calibration,
            evidence.baseline,
            _checked_batches(evidence, _SENSITIVITY_TOKENS),
        ),
    )
    known.append(made)
    release_memory()
    return made


def _float_references(plan: Plan, evidence: Evidence) -> list[Reference]:
    """Compute what the references of a plan would be if nothing was quantized."""
    ranges = evidence.calibration.for_recipe(plan.recipe)
    # How much ties cost is asked of quantized layers only.
    target = dataclasses.replace(plan.target, last_bits=0)
    in_float = dataclasses.replace(plan, target=target, specs=dict.fromkeys(plan.specs))
    batches = _checked_batches(evidence, _CHECKED_TOKENS)
    return evidence.sited.references(in_float, ranges, batches)


def _checked_batches(evidence: Evidence, tokens: int) -> list[Batch]:
    """Return the start of batches of different lengths, with a number of tokens each."""
    batches = evidence.baseline.encoded.batches
    chosen = batches[len(batches) // (_CHECKED_BATCHES + 1) :: len(batches) // 2 + 1]
    return [first_rows(batch, tokens=tokens) for batch in chosen]


def fidelity_warnings(report: TargetReport, ranges: RangeKind = "calibrated") -> list[str]:
    """Warn about a graph that is far from the float model.

    Args:
        report: Its measurements.
        ranges: Where its ranges come from, which decides what the user can do.
    """
    fidelity = report.fidelity
    interval = fidelity.flips_interval
    surely_changed = 0.0 if interval is None else interval.low
    if fidelity.sqnr_db >= _LOW_SQNR_DB and surely_changed <= _HIGH_CHANGED_PERCENT:
        return []
    found = f"{fidelity.sqnr_db:.1f} dB SQNR"
    if fidelity.flips_percent is not None:
        found += f", {fidelity.flips_percent:.1f} % of the predictions changed"
    return [
        f"The INT8 graph for {report.target} on {report.engine} is far from the float model "
        f"({found}). {_HINTS[ranges]}, or pass another `recipe`, and check the task's metric with "
        "`qdqbert evaluate` before you use it."
    ]


def _notices(report: TargetReport) -> list[str]:
    """Say what a user should know about a graph's arithmetic and speed."""
    notices = []
    lowering: LoweringCheck = report.lowering
    if not lowering.is_exact:
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
    slower = [each for each in report.latency if each.speedup < 1]
    # The target `float` is timed against itself.
    if slower and target_named(report.target).quantizes != "nothing":
        shapes = " and ".join(f"{each.batch} x {each.sequence}" for each in slower)
        reason = (
            "This CPU has int8 instructions, so the model or these shapes are too small for them, "
            "or something else ran while they were measured."
            if has_int8_products(cpu_features())
            else "Its int8 kernels are faster on CPUs with int8 instructions: VNNI or AMX on x86, "
            "i8mm on ARM."
        )
        notices.append(
            f"On this machine {report.engine} runs INT8 slower than float at {shapes}. {reason}"
        )
    varied = [each for each in report.latency if each.varied]
    if varied:
        shapes = " and ".join(f"{each.batch} x {each.sequence}" for each in varied)
        notices.append(
            f"Timings of {report.engine} at {shapes} varied, as if something else ran on this "
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
        f"on a batch, {other}load the folder with `batch_invariant=True`."
    ]
