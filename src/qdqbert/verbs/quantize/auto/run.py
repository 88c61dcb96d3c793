"""Fill the output folder with the fastest graph on this machine that is close enough to float."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.artifact import QUANTIZATION, Artifact
from qdqbert.choices import EngineName
from qdqbert.engines.runner import install_command
from qdqbert.evidence.reports import CandidateReport, TargetReport
from qdqbert.files import write_json
from qdqbert.machine import cpu_features
from qdqbert.options import Limits
from qdqbert.progress import Progress, Silent
from qdqbert.reporting.quantize import QuantizeReport
from qdqbert.search.units import Unit
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan
from qdqbert.tasks.lines import counted
from qdqbert.verbs.quantize.auto.candidates import (
    candidate_targets,
    distinct,
    missing_engines,
    reason_of,
)
from qdqbert.verbs.quantize.auto.halving import Standing, rank, round_sizes, turns
from qdqbert.verbs.quantize.auto.timing import TimedFolder, open_timers
from qdqbert.verbs.quantize.auto.worker import write_features
from qdqbert.verbs.quantize.folder import (
    find_overflows,
    make_evidence,
    make_manifest,
    make_report,
    origin_of,
    write_folder,
    write_report,
)
from qdqbert.verbs.quantize.graphs import WrittenGraph, write_graphs
from qdqbert.verbs.quantize.measure import (
    Evidence,
    Measurements,
    fidelity_warnings,
    measure,
    unmet_limits,
)
from qdqbert.verbs.quantize.mixed_precision import meet_limits
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.prepare import Ready, open_source, prepare
from qdqbert.verbs.quantize.ranges import RangeKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A graph on an engine, in a folder of its own.

    Attributes:
        folder: The folder, as `quantize` writes it, without a report.
        engine: The engine.
        written: The graph.
        units: Units that were left in float to meet the limits.
    """

    folder: Path
    engine: EngineName
    written: WrittenGraph
    units: tuple[Unit, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """A candidate and its speed.

    Attributes:
        candidate: The candidate.
        standing: Its times.
        precision: Float type of what is not int8.
    """

    candidate: Candidate
    standing: Standing
    precision: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Which candidate was chosen.

    Attributes:
        timed: All candidates, in the order of their speed: first those that were rejected.
        chosen: The candidate; `None` if none is close enough to float.
        reasons: Why the candidates before it were rejected, in the order of `timed`.
        measured: Evidence of the chosen one, or of all if none was chosen.
    """

    timed: tuple[Timed, ...]
    chosen: Timed | None
    reasons: tuple[str, ...]
    measured: Measurements


def fill_with_fastest(
    options: QuantizeOptions,
    earlier: Artifact | None,
    folder: Path,
    scratch: Path,
    progress: Progress,
) -> QuantizeReport:
    """Measure all candidates, and fill the output folder with the chosen one.

    Args:
        options: Options of the call.
        earlier: Folder whose ranges are used, if there is one.
        folder: Folder to fill. It stays empty if no candidate is close enough to float.
        scratch: Folder for temporary files, on the same disk.
        progress: Receives the stages.
    """
    source = open_source(options, scratch, progress)
    targets = candidate_targets(options)
    ready = prepare(source, options, targets, earlier, progress, leaves_out=True)
    plans, units = meet_limits(
        distinct(ready.plans),
        ready.sited,
        ready.calibration,
        ready.baseline,
        options.limits,
        progress,
    )
    with progress.stage("Writing the graph"):
        graph = ready.sited.graph
    digest = ready.ranges.parameters_sha256(graph)
    candidates = _write_candidates(options, ready, plans, units, digest, scratch, progress)
    features = scratch / "features.json"
    _write_features(ready, options, features)
    time = functools.partial(_time, features=features, total=len(candidates), progress=progress)
    overflows = find_overflows(ready, plans, options, progress)
    evidence = make_evidence(options, ready, graph, scratch, units_in_float={}, overflows=overflows)
    choice = choose(candidates, time, evidence, options.limits, progress)
    reports = candidate_reports(choice)
    report = make_report(options, ready, evidence, choice.measured, _notices(ready))
    report = dataclasses.replace(report, candidates=reports, reason=reason_of(reports))
    if choice.chosen is not None:
        chosen = choice.chosen.candidate
        for path in chosen.folder.iterdir():
            path.rename(folder / path.name)
        manifest = make_manifest(
            options, ready, [chosen.written], digest, _choice_json(chosen.engine)
        )
        write_json(folder / QUANTIZATION, manifest)
        write_report(folder, report, origin_of(ready, options), evidence.rows)
    return report


def choose(
    candidates: Sequence[Candidate],
    time: Callable[[Sequence[Candidate]], Sequence[Timed]],
    evidence: Evidence,
    limits: Limits,
    progress: Progress,
) -> Choice:
    """Time candidates, and check the fastest ones until one is close enough to float.

    Args:
        candidates: The candidates.
        time: Times candidates, and returns them with the fastest one first.
        evidence: What they are compared with.
        limits: Limits of the call. Without any, the usual warnings decide.
        progress: Receives the stages.
    """
    left, checked = list(candidates), list[Timed]()
    reasons: list[str] = []
    rejected: list[Measurements] = []
    while left:
        timed = list(time(left))
        if checked:
            timed = _relative_to(checked[0], timed)
        # Those that are not in the last round were timed on few texts, so that their order is a
        # rough one. If all others are rejected, they are timed again.
        finalists = timed[: round_sizes(len(left))[-1]]
        for each in finalists:
            measured = _measure(each.candidate, evidence, progress)
            [report] = measured.reports
            reason = rejection(report, limits, evidence.ranges)
            if not reason:
                return Choice(
                    timed=(*checked, *timed),
                    chosen=each,
                    reasons=tuple(reasons),
                    measured=measured,
                )
            reasons.append(reason)
            rejected.append(measured)
        checked += finalists
        left = [each.candidate for each in timed[len(finalists) :]]
    measured = Measurements(
        reports=tuple(report for each in rejected for report in each.reports),
        warnings=tuple(warning for each in rejected for warning in each.warnings),
        notices=tuple(notice for each in rejected for notice in each.notices),
    )
    return Choice(timed=tuple(checked), chosen=None, reasons=tuple(reasons), measured=measured)


def rejection(report: TargetReport, limits: Limits, ranges: RangeKind) -> str:
    """Return why a graph is not close enough to float, in words; empty if it is.

    Args:
        report: Its measurements.
        limits: Limits of the call.
        ranges: Where its ranges come from.
    """
    if limits.given():
        return unmet_limits(report)
    if not fidelity_warnings(report, ranges):
        return ""
    fidelity = report.fidelity
    changed = fidelity.flips_percent
    flips = "" if changed is None else f", {changed:.1f} % of the predictions changed"
    return f"far from float: {fidelity.sqnr_db:.1f} dB SQNR{flips}"


def candidate_reports(choice: Choice) -> tuple[CandidateReport, ...]:
    """Return the table of candidates, in the order of their speed."""
    # A candidate that was timed again can turn out to be faster than those before it.
    fastest = min(each.standing.relative_time for each in choice.timed)
    reports = []
    for number, each in enumerate(choice.timed):
        plan, sample = each.candidate.written.plan, each.standing.sample
        is_rejected = number < len(choice.reasons)
        reports.append(
            CandidateReport(
                target=plan.target.name,
                engine=each.candidate.engine,
                precision=each.precision,
                recipe=plan.recipe.name,
                single_ms=sample.single_ms,
                texts_per_second=1e3 / sample.bulk_ms,
                relative_time=each.standing.relative_time / fastest,
                verdict=(
                    "rejected" if is_rejected else "chosen" if each is choice.chosen else "slower"
                ),
                reason=choice.reasons[number] if is_rejected else "",
            )
        )
    return tuple(reports)


def _write_candidates(
    options: QuantizeOptions,
    ready: Ready,
    plans: Sequence[Plan],
    units: Sequence[tuple[Unit, ...]],
    digest: str,
    scratch: Path,
    progress: Progress,
) -> list[Candidate]:
    """Write a folder for each plan, which `load` can open."""
    candidates = []
    source, calibration = ready.source, ready.calibration
    with progress.stage("Writing the candidates", len(plans)) as advance:
        for number, (plan, left) in enumerate(zip(plans, units, strict=True)):
            [engine] = plan.target.engines
            folder = scratch / f"{number}-{plan.target.name}"
            folder.mkdir()
            # The folder can be used with all engines of the target, not only the timed one.
            target = dataclasses.replace(
                plan.target, engines=target_named(plan.target.name).engines
            )
            whole = dataclasses.replace(plan, target=target)
            [written] = write_graphs([whole], ready.sited, calibration, folder, Silent())
            manifest = make_manifest(options, ready, [written], digest)
            write_folder(folder, source, calibration, manifest)
            candidates.append(Candidate(folder=folder, engine=engine, written=written, units=left))
            advance()
    return candidates


def _write_features(ready: Ready, options: QuantizeOptions, path: Path) -> None:
    """Write the texts that candidates are timed on."""
    features = list(ready.inputs.calibration.features.encoded.inputs)
    # Every round takes texts from the start of the list, which can be sorted in any way.
    random.Random(options.calibration.seed).shuffle(features)
    write_features(features, path)


def _time(
    candidates: Sequence[Candidate], *, features: Path, total: int, progress: Progress
) -> list[Timed]:
    """Return candidates with their times, the fastest one first.

    Args:
        candidates: The candidates.
        features: File of the texts.
        total: Number of candidates of the call. If there are fewer here, they were timed before.
        progress: Receives the stage.
    """
    folders = [TimedFolder(folder=each.folder, engine=each.engine) for each in candidates]
    title = f"Timing {counted(len(candidates), 'candidate')}"
    if len(candidates) < total:
        title += " again"
    with (
        progress.stage(title, turns(len(candidates))) as advance,
        open_timers(folders, features) as timers,
    ):
        standings = rank(timers, stop=lambda index: timers[index].close(), advance=advance)
        return [
            Timed(
                candidate=candidates[each.index],
                standing=each,
                precision=timers[each.index].precision,
            )
            for each in standings
        ]


def _relative_to(fastest: Timed, timed: Sequence[Timed]) -> list[Timed]:
    """Return a later ranking with times relative to the fastest one of the first ranking."""
    factor = timed[0].standing.sample.mean_ms / fastest.standing.sample.mean_ms
    return [
        dataclasses.replace(
            each,
            standing=dataclasses.replace(
                each.standing, relative_time=factor * each.standing.relative_time
            ),
        )
        for each in timed
    ]


def _measure(candidate: Candidate, evidence: Evidence, progress: Progress) -> Measurements:
    """Measure a candidate on its engine."""
    written = candidate.written
    target = dataclasses.replace(written.plan.target, engines=(candidate.engine,))
    plan = dataclasses.replace(written.plan, target=target)
    mine = dataclasses.replace(evidence, units_in_float={plan.target.name: candidate.units})
    alone = dataclasses.replace(written, plan=plan)
    # Candidates were timed on the texts of the call already.
    return measure([alone], mine, benchmark=False, progress=progress)


def _notices(ready: Ready) -> list[str]:
    notices = [
        f"Engine {engine} is not installed, so it is no candidate. Install it with: "
        f"{install_command(engine)}"
        for engine in missing_engines()
    ]
    notices += [
        f"Target {name} is no candidate. {reason}" for name, reason in ready.refused.items()
    ]
    return notices


def _choice_json(engine: EngineName) -> Mapping[str, Any]:
    """Return the entry by which `load` chooses the same engine on a CPU like this one."""
    return {"engine": engine, "cpu_features": list(cpu_features())}
