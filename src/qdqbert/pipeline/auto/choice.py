"""Choose the fastest graph on this machine that is close enough to float.

All candidates are timed as they are, and checked in the order of their speed until one is close
enough to float. Those before it are faster, but miss a limit. Leaving layers in float makes them
slower and meets it, which is tried as long as they can stay faster than the one that is close.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from qdqbert.common.choices import EngineName
from qdqbert.common.machine import cpu_features
from qdqbert.common.options.limits import Limits
from qdqbert.common.progress import Progress
from qdqbert.data.rows.lines import counted
from qdqbert.engines.registry import install_command
from qdqbert.evidence.reporting.candidates import reason_of
from qdqbert.evidence.reporting.graphs import unmet_limits
from qdqbert.evidence.reporting.quantize import QuantizeReport
from qdqbert.evidence.reports import LEAST_INT8_PERCENT, CandidateReport, TargetReport
from qdqbert.graphs.targets import target_named
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline.auto.candidates import distinct, missing_engines
from qdqbert.pipeline.auto.ranking import Sample, rank, turns
from qdqbert.pipeline.auto.timing import open_timers
from qdqbert.pipeline.auto.worker import write_features
from qdqbert.pipeline.folder import Output, make_report, write_model
from qdqbert.pipeline.graphs import WrittenGraph, write_graph
from qdqbert.pipeline.measure import Evidence, measure
from qdqbert.pipeline.messages import fidelity_warnings
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.ranges import RangeKind
from qdqbert.pipeline.trials import Trials, are_equal, can_be_met, meet_limits

# Factor by which a candidate has to be faster to be worth the work of meeting limits. Two rankings
# differ by less.
_LEAST_GAIN = 1.05
TOO_SLOW = "with layers left in float to meet it, it would be slower than the chosen one"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A graph on an engine, in a folder of its own.

    Attributes:
        plan: How it is made, for one engine.
        folder: The folder, as `quantize` writes it, without a report.
    """

    plan: Plan
    folder: Path
    written: WrittenGraph

    @property
    def engine(self) -> EngineName:
        """The engine."""
        return self.plan.target.engines[0]

    @property
    def is_float(self) -> bool:
        """Whether it is the float model."""
        return self.plan.target.quantizes == "nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed:
    """A candidate and its speed.

    Attributes:
        sample: Its times for the same texts as those of all other candidates.
        precision: Float type of the operators that are not int8.
        rejection: Why it is not close enough to float, in words; empty if it is, or if it was not
            checked.
    """

    candidate: Candidate
    sample: Sample
    precision: str
    rejection: str = ""

    @property
    def mean_ms(self) -> float:
        """The time by which candidates are ranked."""
        return self.sample.mean_ms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Which candidate was chosen.

    Attributes:
        timed: All candidates, in the order of their speed.
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
    # Candidates are timed on texts from the start of the list, which can be sorted in any way.
    random.Random(ready.data.seed).shuffle(inputs)
    write_features(inputs, features)
    is_possible = can_be_met(limits, ready.baseline)
    known, failed = list[tuple[Plan, Plan]](), list[tuple[Plan, float]]()

    def check(candidate: Candidate) -> tuple[TargetReport, str]:
        alone = dataclasses.replace(candidate.written, plan=candidate.plan)
        # Candidates were timed on the texts of the call already.
        [report] = measure([alone], evidence, benchmark=False, progress=progress)
        return report, rejection(report, limits, ready.ranges.kind)

    def adjust(candidate: Candidate, most_float: float) -> Candidate | str:
        old = candidate.plan
        share = ready.int8_percent(old)
        if not is_possible or share is None:
            return ""
        if old.target.quantizes != "any_sites":
            return f"{candidate.engine} runs all linear layers in {old.codes}"
        least = max(LEAST_INT8_PERCENT, (1 - most_float) * share)
        if any(are_equal(old, other) and least >= tried for other, tried in failed):
            return TOO_SLOW
        new = meet_limits(Trials.of(ready, old), limits, progress, known, least_percent=least)
        if (ready.int8_percent(new) or 0.0) < least:
            failed.append((old, least))
            return TOO_SLOW
        known.append((old, new))
        return write_candidate(new, ready, output) if new.units_in_float else ""

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
        return [
            Timed(candidate=candidates[index], sample=sample, precision=timers[index].precision)
            for index, sample in rank(timers, advance=advance)
        ]


def choose(
    candidates: Sequence[Candidate],
    *,
    time: Time,
    check: Callable[[Candidate], tuple[TargetReport, str]],
    adjust: Callable[[Candidate, float], Candidate | str],
) -> Choice:
    """Find the fastest candidate that is close enough to float.

    Args:
        candidates: The candidates.
        time: Times candidates.
        check: Measures how close a candidate is to float, and says why that is not enough; nothing
            if it is.
        adjust: Returns a slower candidate that is closer to float, and leaves at most a share of
            the multiplications in float; or says why there is none.
    """
    rejected, reports, best = list[Timed](), list[TargetReport](), None
    others = time(candidates, again=False)
    while best is None and others:
        each = others.pop(0)
        report, reason = check(each.candidate)
        if reason:
            rejected.append(dataclasses.replace(each, rejection=reason))
            reports.append(report)
        else:
            best, reports = each, [report]
    for each in sorted(rejected, key=lambda each: each.mean_ms):
        if best is None or each.mean_ms * _LEAST_GAIN > best.mean_ms:
            break
        closer = adjust(each.candidate, _most_float(each, best, [*others, best]))
        if isinstance(closer, Candidate):
            again = _timed_again(time, best, closer)
            if again.mean_ms < best.mean_ms:
                report, reason = check(closer)
                if not reason:
                    rejected.remove(each)
                    others.append(best)
                    best, reports = again, [report]
                    continue
                closer = f"with layers in float, {reason}"
            else:
                closer = TOO_SLOW
        if closer:
            words = f"{each.rejection}; {closer}"
            rejected[rejected.index(each)] = dataclasses.replace(each, rejection=words)
    every = [*rejected, *others] + ([] if best is None else [best])
    return Choice(
        timed=tuple(sorted(every, key=lambda each: each.mean_ms)),
        chosen=None if best is None else best.candidate,
        reports=tuple(reports),
    )


def _most_float(candidate: Timed, best: Timed, others: Sequence[Timed]) -> float:
    """Return the largest share of multiplications in float that can make a candidate win.

    With this share, its time goes from its own to the float model's on the same engine. Changes
    between int8 and float take time in addition, so that the real share is smaller.
    """
    in_float = min(
        (
            each.mean_ms
            for each in others
            if each.candidate.engine == candidate.candidate.engine and each.candidate.is_float
        ),
        default=candidate.mean_ms,
    )
    allowed = best.mean_ms / _LEAST_GAIN - candidate.mean_ms
    return min(1.0, allowed / max(in_float - candidate.mean_ms, allowed))


def _timed_again(time: Time, known: Timed, candidate: Candidate) -> Timed:
    """Return a candidate with times that compare with those of an earlier ranking.

    `known` is a candidate of that ranking, which is timed with the new one.
    """
    timed = time([known.candidate, candidate], again=True)
    [same] = [each.sample for each in timed if each.candidate is known.candidate]
    [found] = [each for each in timed if each.candidate is candidate]
    return dataclasses.replace(found, sample=found.sample.scaled(same, known.sample))


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
    fastest = min(each.mean_ms for each in choice.timed)
    return tuple(
        CandidateReport(
            target=each.candidate.plan.target.name,
            engine=each.candidate.engine,
            precision=each.precision,
            recipe=each.candidate.plan.recipe.name,
            codes=each.candidate.plan.codes,
            single_ms=each.sample.single_ms,
            texts_per_second=1e3 / each.sample.bulk_ms,
            relative_time=each.mean_ms / fastest,
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
