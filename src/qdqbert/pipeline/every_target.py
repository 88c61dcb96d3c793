"""Quantize a calibrated model for all targets of a call, and measure the graphs."""

from __future__ import annotations

import shutil

from qdqbert.common.progress import Progress
from qdqbert.evidence.reporting.graphs import unmet_limits
from qdqbert.evidence.reporting.quantize import QuantizeReport
from qdqbert.graphs.targets.target import Plan
from qdqbert.pipeline.folder import Output, make_report, write_model
from qdqbert.pipeline.graphs import with_measurable_graph, write_graph
from qdqbert.pipeline.measure import Evidence, measure
from qdqbert.pipeline.trials import Trials, can_be_met, meet_limits


def write_every_target(
    evidence: Evidence, output: Output, progress: Progress, *, benchmark: bool, leaves_out: bool
) -> QuantizeReport:
    """Fill the output folder with a graph for each plan of a call, and return the report.

    With `leaves_out`, targets that miss a limit are left out if another one meets all: some run all
    linear layers in int8, and can only miss it.
    """
    ready, sited, calibration = evidence.ready, evidence.ready.sited, evidence.ready.calibration
    plans = plans_within_limits(evidence, progress)
    written = []
    for plan in plans:
        with progress.stage(f"Lowering for {plan.target.name}"):
            is_alone = len(plans) == 1
            written.append(write_graph(plan, sited, calibration, output.folder, is_alone=is_alone))
    measurable = [
        with_measurable_graph(each, sited, calibration, output.scratch) for each in written
    ]
    reports = measure(measurable, evidence, benchmark=benchmark, progress=progress)
    notices = [f"Target {name} is left out. {why}" for name, why in ready.refused.items()]
    missed = {each.target: found for each in reports if (found := unmet_limits(each))}
    if leaves_out and len(missed) < len(written):
        for each in written:
            if each.plan.target.name in missed:
                shutil.rmtree(each.path.parent)
        notices += [f"Target {name} is left out: {found}." for name, found in missed.items()]
    else:
        missed = {}
    kept = [each for each in written if each.plan.target.name not in missed]
    write_model(output.folder, ready, kept, output.command)
    targets = [each.plan.target for each in measurable if each.plan.target.name not in missed]
    reports = tuple(each for each in reports if each.target not in missed)
    return make_report(evidence, reports, output, targets=targets, notices=notices)


def plans_within_limits(evidence: Evidence, progress: Progress) -> list[Plan]:
    """Return each plan with as few units in float as the limits need; see `meet_limits`."""
    ready, limits = evidence.ready, evidence.limits
    if not can_be_met(limits, ready.baseline):
        return list(ready.plans)
    changed: list[Plan] = []
    for plan in ready.plans:
        known = list(zip(ready.plans, changed, strict=False))
        changed.append(meet_limits(Trials.of(ready, plan), limits, progress, known))
    return changed
