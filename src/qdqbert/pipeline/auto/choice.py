"""Choose the fastest graph on this machine that is close enough to float.

All candidates are timed as they are. The fastest ones are checked in the order of their speed. One
that misses a limit leaves layers in float, and is timed again with the others.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from qdqbert.choices import EngineName
from qdqbert.engines.runner import install_command
from qdqbert.evidence.reports import LEAST_INT8_PERCENT, CandidateReport, TargetReport
from qdqbert.machine import cpu_features
from qdqbert.options import Limits
from qdqbert.pipeline.auto.candidates import distinct, missing_engines, reason_of
from qdqbert.pipeline.auto.halving import Standing, rank, round_sizes, turns
from qdqbert.pipeline.auto.timing import open_timers
from qdqbert.pipeline.auto.worker import write_features
from qdqbert.pipeline.folder import Output, make_report, write_model
from qdqbert.pipeline.graphs import WrittenGraph, write_graph
from qdqbert.pipeline.measure import Evidence, measure
from qdqbert.pipeline.messages import fidelity_warnings
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.ranges import RangeKind
from qdqbert.pipeline.trials import Trials, can_be_met, meet_limits
from qdqbert.progress import Progress
from qdqbert.reporting.graphs import unmet_limits
from qdqbert.reporting.quantize import QuantizeReport
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan
from qdqbert.tasks.lines import counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A graph on an engine, in a folder of its own.

    Attributes:
        plan: How it is made, for one engine.
        folder: The folder, as `quantize` writes it, without a report.
        written: The graph.
    """

    plan: Plan
    folder: Path
    written: WrittenGraph

    @property
    def engine(self) -> EngineName:
        """The engine."""
        return self.plan.target.engines[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """A candidate and its speed.

    Attributes:
        candidate: The candidate.
        standing: Its times.
        precision: Float type of the operators that are not int8.
        rejection: Why it is not close enough to float, in words; empty if it is, or if it was not
            checked.
    """

    candidate: Candidate
    standing: Standing
    precision: str
    rejection: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Which candidate was chosen.

    Attributes:
        timed: All candidates, in the order of their speed: first those that were rejected.
        chosen: The candidate; `None` if none is close enough to float.
        reports: Measurements of the chosen one, or of all if none was chosen.
    """

    timed: tuple[Timed, ...]
    chosen: Candidate | None
    reports: tuple[TargetReport, ...]


class Time(Protocol):
    """Times candidates."""

    def __call__(self, candidates: Sequence[Candidate], *, again: bool) -> list[Timed]:
        """Return candidates with their times, the fastest one first."""
        ...


def write_fastest(evidence: Evidence, output: Output, progress: Progress) -> QuantizeReport:
    """Fill the output folder with the fastest candidate, and return the report.

    The folder stays empty if no candidate is close enough to float.
    """
    ready = evidence.ready
    choice = choose_fastest(evidence, output, progress)
    notices = [
        f"Engine {engine} is not installed, so it is no candidate. Install it with: "
        f"{install_command(engine)}"
        for engine in missing_engines()
    ]
    notices += [f"Target {name} is no candidate. {why}" for name, why in ready.refused.items()]
    report = make_report(evidence, choice.reports, output, notices=notices)
    chosen = choice.chosen
    if chosen is not None:
        for path in chosen.folder.iterdir():
            path.rename(output.folder / path.name)
        # By this entry, `load` chooses the same engine on a CPU like this one.
        engine = {"engine": chosen.engine, "cpu_features": list(cpu_features())}
        write_model(output.folder, ready, [chosen.written], output.command, engine)
    candidates = candidate_reports(choice)
    return dataclasses.replace(report, candidates=candidates, reason=reason_of(candidates))


def choose_fastest(evidence: Evidence, output: Output, progress: Progress) -> Choice:
    """Write and time a candidate for each plan of a call, and choose one."""
    ready, limits = evidence.ready, evidence.limits
    features = output.scratch / "features.json"
    inputs = list(ready.inputs.calibration.features.encoded.inputs)
    # Every round takes texts from the start of the list, which can be sorted in any way.
    random.Random(ready.data.seed).shuffle(inputs)
    write_features(inputs, features)
    is_possible = can_be_met(limits, ready.baseline)
    known: list[tuple[Plan, Plan]] = []

    def check(candidate: Candidate) -> tuple[TargetReport, str]:
        alone = dataclasses.replace(candidate.written, plan=candidate.plan)
        # Candidates were timed on the texts of the call already.
        [report] = measure([alone], evidence, benchmark=False, progress=progress)
        return report, rejection(report, limits, ready.ranges.kind)

    def adjust(candidate: Candidate) -> Candidate | None:
        old = candidate.plan
        if not is_possible or old.units_in_float:
            return None
        new = meet_limits(Trials.of(ready, old), limits, progress, known)
        known.append((old, new))
        share = ready.int8_percent(new)
        if not new.units_in_float or share is None or share < LEAST_INT8_PERCENT:
            return None
        shutil.rmtree(candidate.folder)
        return write_candidate(new, ready, output)

    plans = distinct(ready.plans)
    candidates = []
    with progress.stage("Writing the candidates", len(plans)) as advance:
        for plan in plans:
            candidates.append(write_candidate(plan, ready, output))
            advance()
    time = functools.partial(time_candidates, features=features, progress=progress)
    return choose(candidates, time=time, check=check, adjust=adjust)


def write_candidate(plan: Plan, ready: Ready, output: Output) -> Candidate:
    """Write a folder that `load` can open."""
    folder = Path(tempfile.mkdtemp(prefix=f"{plan.target.name}-", dir=output.scratch))
    # The folder can be used with all engines of the target, not only the timed one.
    engines = target_named(plan.target.name).engines
    whole = dataclasses.replace(plan, target=dataclasses.replace(plan.target, engines=engines))
    written = write_graph(whole, ready.sited, ready.calibration, folder)
    write_model(folder, ready, [written], output.command)
    return Candidate(plan=plan, folder=folder, written=written)


def time_candidates(
    candidates: Sequence[Candidate], *, features: Path, progress: Progress, again: bool
) -> list[Timed]:
    """Return candidates with their times, the fastest one first."""
    title = f"Timing {counted(len(candidates), 'candidate')}{' again' if again else ''}"
    folders = [(each.folder, each.engine) for each in candidates]
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


def choose(
    candidates: Sequence[Candidate],
    *,
    time: Time,
    check: Callable[[Candidate], tuple[TargetReport, str]],
    adjust: Callable[[Candidate], Candidate | None],
) -> Choice:
    """Time candidates, and check the fastest ones until one is close enough to float.

    Args:
        candidates: The candidates.
        time: Times candidates.
        check: Measures how close a candidate is to float, and says why that is not enough; nothing
            if it is.
        adjust: Returns a slower candidate that is closer to float; `None` if there is none.
    """
    left, rejected, reports = list(candidates), list[Timed](), list[TargetReport]()
    again = False
    while left:
        timed = time(left, again=again)
        again = True
        if rejected:
            timed = _relative_to(rejected[0], timed)
        left = [each.candidate for each in timed]
        # Candidates that are not in the last round were timed on few texts, so their order is
        # rough. If all others are rejected, they are timed again.
        for each in timed[: round_sizes(len(left))[-1]]:
            report, reason = check(each.candidate)
            if not reason:
                others = timed[len(timed) - len(left) :]
                return Choice(timed=(*rejected, *others), chosen=each.candidate, reports=(report,))
            closer = adjust(each.candidate)
            if closer is not None:
                left[left.index(each.candidate)] = closer
                break
            left.remove(each.candidate)
            rejected.append(dataclasses.replace(each, rejection=reason))
            reports.append(report)
    return Choice(timed=tuple(rejected), chosen=None, reports=tuple(reports))


def rejection(report: TargetReport, limits: Limits, ranges: RangeKind) -> str:
    """Return why a graph is not close enough to float, in words; empty if it is.

    Without limits, the usual warnings decide.
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
    return tuple(
        CandidateReport(
            target=each.candidate.plan.target.name,
            engine=each.candidate.engine,
            precision=each.precision,
            recipe=each.candidate.plan.recipe.name,
            single_ms=each.standing.sample.single_ms,
            texts_per_second=1e3 / each.standing.sample.bulk_ms,
            relative_time=each.standing.relative_time / fastest,
            verdict=(
                "rejected"
                if each.rejection
                else "chosen"
                if each.candidate is choice.chosen
                else "slower"
            ),
            reason=each.rejection,
        )
        for each in choice.timed
    )


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
