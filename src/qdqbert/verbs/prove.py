"""Measures what quantization wrote: agreement with PyTorch, fidelity to float, speed and size."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from qdqbert.artifact import size_bytes
from qdqbert.calibration.calibration import Calibration
from qdqbert.choices import ENGINE_NAMES, EngineName
from qdqbert.engines.runner import is_installed, open_runner
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.lowering import LoweringCheck, Reference, check_lowering
from qdqbert.evidence.reports import LatencyReport, TargetReport
from qdqbert.graph.export import choices_of
from qdqbert.progress import Progress
from qdqbert.targets.target import Plan
from qdqbert.tasks import TASKS
from qdqbert.tasks.task import Predictions, TaskOptions
from qdqbert.verbs.doors import Door
from qdqbert.verbs.inference import EncodedExamples, fidelity_of, predict

_SHAPES = ((1, 32), (8, 128))
_ROUNDS = 3
_CHECKED_BATCHES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """One target's graph, in memory and on disk.

    Attributes:
        plan: How it was made.
        model: The graph.
        path: The file.
        name: The file's path in the folder.
    """

    plan: Plan
    model: ir.Model
    path: Path
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What graphs are judged by.

    Attributes:
        door: The float model.
        calibration: What was chosen.
        heldout: Texts that were not calibrated on.
        float_rows: The float model's answers to them.
        float_model: File of the float graph.
        max_length: Longest input in tokens.
        options: Settings of the task.
    """

    door: Door
    calibration: Calibration
    heldout: EncodedExamples
    float_rows: Predictions
    float_model: Path
    max_length: int
    options: TaskOptions


def prove(
    written: Sequence[Written],
    evidence: Evidence,
    *,
    benchmark: bool,
    progress: Progress,
    notices: list[str],
) -> list[TargetReport]:
    """One report for each graph on each installed engine that runs it.

    Args:
        written: The graphs.
        evidence: What they are judged by.
        benchmark: Whether to time them.
        progress: Shows stages.
        notices: Is added to.
    """
    jobs = [(each, engine) for each in written for engine in _engines(each.plan, notices)]
    timed = [job for job in jobs if not job[0].plan.target.is_proxy]
    timings = _time(timed, evidence, progress) if benchmark and timed else []
    references: dict[str, list[Reference]] = {}
    reports = []
    for each, engine in jobs:
        target = each.plan.target.name
        title = f"Checking {target} on {engine}"
        with progress.stage(title, len(evidence.heldout.batches)) as advance:
            task = TASKS[evidence.door.task]
            if target not in references:  # the same on every engine
                references[target] = _references(each.plan, evidence)
            rows = predict(task, open_runner(engine, each.path), evidence.heldout, advance)
            report = TargetReport(
                target=target,
                engine=engine,
                recipe=each.plan.recipe.name,
                model=each.name,
                fidelity=fidelity_of(
                    task,
                    evidence.float_rows,
                    rows,
                    evidence.heldout.features,
                    evidence.options,
                ),
                lowering=check_lowering(each.model, references[target], engine),
                size_bytes=size_bytes(each.path),
                size_ratio=size_bytes(each.path) / size_bytes(evidence.float_model),
                latency=tuple(_latency(timings, each.plan, engine)),
            )
        notices += _warnings(report)
        reports.append(report)
    return reports


def _engines(plan: Plan, notices: list[str]) -> list[EngineName]:
    if not plan.target.engines:
        notices.append(
            f"Nothing was measured for target {plan.target.name}, whose graph no engine here runs: "
            f"it is for {plan.target.summary}."
        )
    if plan.target.engines and plan.target.is_proxy:
        notices.append(
            f"{', '.join(plan.target.engines)} stands in for {plan.target.name}: it tells what the "
            "graph computes, not how fast. Time it where it will run."
        )
    missing = [engine for engine in plan.target.engines if not is_installed(engine)]
    notices += [
        f"Engine {engine} is not installed, so nothing was measured on it. Install it with: "
        f"pip install 'qdqbert[{engine}]'"
        for engine in missing
    ]
    return [engine for engine in plan.target.engines if engine not in missing]


def _time(
    jobs: Sequence[tuple[Written, EngineName]], evidence: Evidence, progress: Progress
) -> list[Timing]:
    """The float graph on each engine, and every INT8 graph, in turns."""
    engines = [engine for engine in ENGINE_NAMES if any(engine == used for _, used in jobs)]
    models = [("float", engine, evidence.float_model) for engine in engines]
    models += [(each.plan.target.name, engine, each.path) for each, engine in jobs]
    candidates = [
        Candidate(
            name=name,
            engine=engine,
            model=model,
            vocab_size=evidence.door.config.vocab_size,
            choices=choices_of(evidence.door.task),
        )
        for name, engine, model in models
    ]
    longest = evidence.max_length
    shapes = list(dict.fromkeys((batch, min(sequence, longest)) for batch, sequence in _SHAPES))
    total = len(candidates) * len(shapes) * _ROUNDS
    with progress.stage("Timing float and INT8", total) as advance:
        return time_candidates(candidates, shapes, rounds=_ROUNDS, advance=advance)


def _latency(timings: Sequence[Timing], plan: Plan, engine: EngineName) -> list[LatencyReport]:
    """The timings of one graph beside those of the float one."""
    mine: Mapping[str, list[Timing]] = {
        name: [each for each in timings if each.name == name and each.engine == engine]
        for name in ("float", plan.target.name)
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
        for slow, fast in zip(mine["float"], mine[plan.target.name], strict=True)
    ]


def _references(plan: Plan, evidence: Evidence) -> list[Reference]:
    """What the float model computes under a plan, on batches of different lengths."""
    batches = evidence.heldout.batches
    chosen = batches[len(batches) // (_CHECKED_BATCHES + 1) :: len(batches) // 2 + 1]
    return evidence.door.references(plan, evidence.calibration.for_recipe(plan.recipe), chosen)


def _warnings(report: TargetReport) -> list[str]:
    """What of a report a user should act on."""
    warnings = []
    lowering: LoweringCheck = report.lowering
    if not lowering.is_exact:
        warnings.append(
            f"On {report.engine} the graph differs from what its Q/DQ pairs say: "
            f"{lowering.worst_layer_db:.1f} dB at `{lowering.worst_layer}`, where rounding "
            f"ties alone leave {lowering.ties_db:.1f} dB and {lowering.wanted_db:.1f} are wanted. "
            "Judge it by `qdqbert evaluate --reference`, or pass another `--target` or `--recipe`."
        )
    if lowering.saturates:
        warnings.append(
            f"On this CPU {report.engine}'s int8 sums saturate: {lowering.native_db:.1f} dB where "
            f"exact arithmetic gives {lowering.worst_layer_db:.1f} dB."
        )
    slower = [each for each in report.latency if each.speedup < 1]
    if slower:
        shapes = " and ".join(f"{each.batch} x {each.sequence}" for each in slower)
        warnings.append(
            f"On this machine {report.engine} runs INT8 slower than float at {shapes}. Its int8 "
            "kernels gain on CPUs with VNNI or AMX instructions."
        )
    return warnings
