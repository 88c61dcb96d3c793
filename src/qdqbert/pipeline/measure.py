"""Measure the graphs that were written: agreement with PyTorch, fidelity, speed and size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qdqbert.common.choices import ENGINE_NAMES, EngineName, VerificationData
from qdqbert.common.machine import release_memory
from qdqbert.common.options.limits import Limits
from qdqbert.common.progress import Progress
from qdqbert.data.tokenizing.encoding import Batch, first_rows
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.engines.registry import float_engine, is_installed, open_runner
from qdqbert.evidence.latency import ROUNDS, Candidate, Timing, time_candidates, usual_shapes
from qdqbert.evidence.lowering import Reference, check_lowering, layer_fidelity
from qdqbert.evidence.reports import LatencyReport, Sensitivity, TargetReport, latency_reports
from qdqbert.evidence.saturation import Overflow, SaturationCheck
from qdqbert.evidence.vector_recall import vector_recall
from qdqbert.evidence.verification import VerificationRow, measure_rows
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.targets import target_named
from qdqbert.graphs.targets.target import Plan
from qdqbert.graphs.writer import make_graph
from qdqbert.pipeline.graphs import WrittenGraph
from qdqbert.pipeline.predictions import Baseline, predict
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.trials import Trials, layer_sensitivity
from qdqbert.pipeline.verification import make_rows
from qdqbert.runtime.artifact import MODEL, size_bytes

# Name of the float graph among the graphs that are timed, which no target has.
_REFERENCE = "reference"
# The layer check keeps the states of all layers in memory, for this number of tokens in a batch.
_CHECKED_BATCHES = 2
_CHECKED_TOKENS = 1024
# The sensitivity runs the model once for each layer, on this number of tokens of these batches.
_SENSITIVITY_TOKENS = 256
# Texts that run alone, to see whether their results depend on their batch.
_TEXTS_ALONE = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The float model and the examples that graphs are compared on.

    Attributes:
        float_model: File of the float graph.
        rows: Rows that `verify` runs again.
    """

    ready: Ready
    float_model: Path
    limits: Limits
    rows: Sequence[VerificationRow]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _InPyTorch:
    """Results of PyTorch's fake quantization under a plan.

    Attributes:
        references: Its results, layer by layer, on batches of different lengths.
        floats: The float model's results on the same batches.
    """

    plan: Plan
    references: list[Reference]
    floats: list[Reference]
    sensitivity: tuple[Sensitivity, ...]


def collect_evidence(
    ready: Ready, limits: Limits, data: VerificationData, scratch: Path, progress: Progress
) -> Evidence:
    """Write the float graph, and run it on the rows that `verify` runs again."""
    float_model = scratch / MODEL
    with progress.stage("Writing the graph"):
        save_graph(make_graph(ready.sited.encoder), float_model, temporary=True)
    rows = make_rows(ready, float_model, data)
    return Evidence(ready=ready, float_model=float_model, limits=limits, rows=rows)


def measure(
    written: Sequence[WrittenGraph], evidence: Evidence, *, benchmark: bool, progress: Progress
) -> tuple[TargetReport, ...]:
    """Measure each graph on each installed engine that runs it."""
    jobs = [
        (each, engine)
        for each in written
        for engine in each.plan.target.engines
        if is_installed(engine)
    ]
    timed = [job for job in jobs if not job[0].plan.target.is_proxy]
    timings = _time(timed, evidence, progress) if benchmark and timed else []
    overflows = {
        each.plan.target.name: find_overflows(each.plan, evidence.ready, progress)
        for each in written
    }
    known: list[_InPyTorch] = []
    reports = []
    for each, engine in jobs:
        title = f"Checking {each.plan.target.name} on {engine}"
        batches = evidence.ready.baseline.encoded.batches
        with progress.stage(title, len(batches)) as advance:
            in_pytorch = _in_pytorch(each.plan, evidence.ready, known)
            report = _check(each, engine, evidence, in_pytorch, advance)
        reports.append(
            dataclasses.replace(
                report,
                overflows=overflows[each.plan.target.name],
                latency=_latency(timings, each.plan, engine),
            )
        )
    return tuple(reports)


def find_overflows(plan: Plan, ready: Ready, progress: Progress) -> tuple[Overflow, ...] | None:
    """Return which linear layers would saturate on a CPU without VNNI.

    `None` if none can: the weights are exact on all CPUs, or the target is not for CPUs.
    """
    is_for_cpus = target_named(plan.target.name).adjacent_sum_limit is not None
    if ready.scheme.quantizers.weights_for != "vnni" or not is_for_cpus:
        return None
    chosen = ready.calibration.for_recipe(plan.recipe)
    check = SaturationCheck(plan.specs, chosen, ready.sited.weights())
    batches = ready.inputs.calibration.batches
    with progress.stage(f"Checking {plan.target.name} for saturation"):
        ready.sited.check_saturation(check, batches[:: max(1, len(batches) // 8)])
    return tuple(check.overflows)


def _check(
    graph: WrittenGraph,
    engine: EngineName,
    evidence: Evidence,
    in_pytorch: _InPyTorch,
    advance: Callable[[], None],
) -> TargetReport:
    """Compare one graph on one engine with the float model and with PyTorch's fake quantization.

    The report has no latency yet.
    """
    plan, baseline = graph.plan, evidence.ready.baseline
    runner = open_runner(engine, graph.path, low_memory=True)
    predictions = predict(baseline.task, runner, baseline.encoded, advance)
    invariance = baseline.batch_invariance(runner, predictions, texts=_TEXTS_ALONE)
    rows = evidence.rows
    verification_db = measure_rows(runner, rows) if rows else None
    # It holds the weights, of which the layer check loads two more copies.
    del runner
    release_memory()
    comparison = baseline.compare(predictions)
    ranges = evidence.ready.embedding_ranges
    return TargetReport(
        target=plan.target.name,
        engine=engine,
        recipe=plan.recipe.name,
        codes=plan.codes,
        units_in_float=plan.units_in_float,
        int8_percent=evidence.ready.int8_percent(plan),
        model=graph.name,
        fidelity=comparison.fidelity,
        metrics=comparison.metrics,
        differences=comparison.differences,
        limits=baseline.check(predictions, evidence.limits),
        layers=layer_fidelity(in_pytorch.references, in_pytorch.floats),
        sensitivity=in_pytorch.sensitivity,
        lowering=check_lowering(
            graph.path,
            in_pytorch.references,
            engine,
            floats=in_pytorch.floats,
            agreement_db=plan.target.agreement_db,
        ),
        overflows=None,
        batch_invariance=invariance,
        size_bytes=graph.size_bytes,
        size_ratio=graph.size_bytes / size_bytes(evidence.float_model),
        latency=(),
        verification_db=verification_db,
        changed=baseline.changed(predictions),
        recall=None if ranges is None else vector_recall(baseline.predictions, predictions, ranges),
    )


def _time(
    jobs: Sequence[tuple[WrittenGraph, EngineName]], evidence: Evidence, progress: Progress
) -> list[Timing]:
    """Time the float graph on each engine that runs it and every INT8 graph alternately."""
    source = evidence.ready.source
    used = {float_engine(engine) for _, engine in jobs}
    engines = [engine for engine in ENGINE_NAMES if engine in used]
    models = [(_REFERENCE, engine, evidence.float_model) for engine in engines]
    models += [(str(each.plan.target.name), engine, each.path) for each, engine in jobs]
    candidates = [
        Candidate(
            name=name,
            engine=engine,
            model=model,
            choices=TASK_KINDS[source.task.name].choices,
        )
        for name, engine, model in models
    ]
    shapes = usual_shapes(evidence.ready.inputs.max_length)
    total = len(candidates) * len(shapes) * ROUNDS
    with progress.stage("Timing float and INT8", total) as advance:
        return time_candidates(candidates, shapes, rounds=ROUNDS, advance=advance)


def _latency(
    timings: Sequence[Timing], plan: Plan, engine: EngineName
) -> tuple[LatencyReport, ...]:
    """Pair the timings of one graph with the float graph's."""
    mine: Mapping[str, list[Timing]] = {
        name: [each for each in timings if each.name == name and each.engine == used]
        for name, used in ((_REFERENCE, float_engine(engine)), (plan.target.name, engine))
    }
    if plan.target.is_proxy:
        return ()
    return latency_reports(mine[_REFERENCE], mine[plan.target.name])


def _in_pytorch(plan: Plan, ready: Ready, known: list[_InPyTorch]) -> _InPyTorch:
    """Run a plan in PyTorch, or return known results.

    They depend neither on the engine nor on the target: targets often have the same specs.

    New results are appended to `known`.
    """
    ranges = ready.calibration.for_recipe
    for each in known:
        if (
            plan.specs == each.plan.specs
            and plan.target.last_bits == each.plan.target.last_bits
            and ranges(plan.recipe) is ranges(each.plan.recipe)
        ):
            return each
    sited, baseline, calibration = ready.sited, ready.baseline, ranges(plan.recipe)
    checked = _checked_batches(baseline, _CHECKED_TOKENS)
    # How much ties cost is asked of quantized layers only.
    target = dataclasses.replace(plan.target, last_bits=0)
    in_float = dataclasses.replace(plan, target=target, specs=dict.fromkeys(plan.specs))
    trials = Trials.of(ready, plan)
    made = _InPyTorch(
        plan=plan,
        references=sited.references(plan, calibration, checked),
        floats=known[0].floats if known else sited.references(in_float, calibration, checked),
        sensitivity=layer_sensitivity(trials, _checked_batches(baseline, _SENSITIVITY_TOKENS)),
    )
    known.append(made)
    release_memory()
    return made


def _checked_batches(baseline: Baseline, tokens: int) -> list[Batch]:
    """Return the start of batches of different lengths, with a number of tokens each."""
    batches = baseline.encoded.batches
    chosen = batches[len(batches) // (_CHECKED_BATCHES + 1) :: len(batches) // 2 + 1]
    return [first_rows(batch, tokens=tokens) for batch in chosen]
