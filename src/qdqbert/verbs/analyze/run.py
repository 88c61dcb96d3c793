"""Measure what each part of a model costs if it is quantized."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from qdqbert.progress import Progress
from qdqbert.reporting.analyze import AnalyzeReport, Cost, UnitReport
from qdqbert.search.units import Unit, make_units
from qdqbert.tasks.task import Predictions
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.analyze.plot import check_plot, plot_costs
from qdqbert.verbs.inference import Baseline
from qdqbert.verbs.quantize.mixed_precision import Trials
from qdqbert.verbs.quantize.prepare import choose_targets, open_source, prepare


def run(options: AnalyzeOptions, progress: Progress) -> AnalyzeReport:
    """Analyze a model.

    Raises:
        UserInputError: An argument or a file cannot be used.
        CalibrationError: A site saw no usable value.
    """
    if options.plot is not None:
        check_plot(Path(options.plot))
    quantize_options = options.to_quantize()
    with tempfile.TemporaryDirectory() as scratch:
        source = open_source(quantize_options, Path(scratch), progress)
        ready = prepare(
            source,
            quantize_options,
            choose_targets(quantize_options, source.task),
            None,
            progress,
            max_heldout=options.max_examples,
        )
        [plan] = ready.plans
        units = make_units(plan.specs, ready.sited.weights(), options.granularity)
        trials = Trials(
            plan, ready.sited, ready.calibration.for_recipe(plan.recipe), ready.baseline
        )
        whole, reports = measure(units, trials, ready.baseline, progress)
    metrics = ready.baseline.metrics
    notices = [*ready.source.notices, *ready.ranges.notices, *ready.examples.notices]
    notices += ready.inputs.notices
    report = AnalyzeReport(
        model=str(options.model),
        task=ready.source.task,
        target=plan.target.name,
        recipe=plan.recipe.name,
        metric=metrics[0].name if metrics else None,
        examples=len(ready.examples.heldout),
        whole=whole,
        units=reports,
        notices=tuple(dict.fromkeys(notices)),
    )
    if options.plot is not None:
        plot_costs(report, Path(options.plot))
    return report


def measure(
    units: Sequence[Unit], trials: Trials, baseline: Baseline, progress: Progress
) -> tuple[Cost, tuple[UnitReport, ...]]:
    """Measure each unit by itself, and all that are left if the most costly ones stay in float.

    Args:
        units: The units.
        trials: Runs the model with some sites left in float.
        baseline: The float model's results.
        progress: Receives the stages.

    Returns:
        The cost of quantizing everything, and the units, the most costly one first.
    """
    every = {site for unit in units for site in unit.sites}
    total = sum(unit.cost for unit in units)
    with progress.stage("Quantizing one part at a time", len(units)) as advance:
        alone = {}
        for unit in units:
            alone[unit.name] = _cost(baseline, trials.predictions(every - set(unit.sites)))
            advance()
    ordered = sorted(units, key=lambda unit: alone[unit.name].sqnr_db)
    whole, left, reports = _cost(baseline, trials.predictions(())), set[str](), []
    with progress.stage("Leaving the most costly in float", len(units)) as advance:
        for unit in ordered:
            left |= set(unit.sites)
            reports.append(
                UnitReport(
                    name=unit.name,
                    sites=unit.sites,
                    share_percent=100 * unit.cost / total,
                    alone=alone[unit.name],
                    left=_cost(baseline, trials.predictions(left)),
                )
            )
            advance()
    return whole, tuple(reports)


def _cost(baseline: Baseline, predictions: Predictions) -> Cost:
    fidelity, scores = baseline.fidelity(predictions), baseline.scores_of(predictions)
    drop = None
    if scores:
        metric, reference = scores[0].metric(), baseline.scores[0].metric()
        drop = reference.value - metric.value
        drop = -drop if metric.is_error else drop
    return Cost(sqnr_db=fidelity.sqnr_db, flips_percent=fidelity.flips_percent, drop=drop)
