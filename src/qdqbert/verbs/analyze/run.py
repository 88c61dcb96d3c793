"""Measure what each part of a model costs if it is quantized."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qdqbert.common.files import temporary_folder
from qdqbert.common.progress import Progress
from qdqbert.common.storage import place_of
from qdqbert.evidence.reporting.analyze import AnalyzeReport, Cost, UnitReport
from qdqbert.pipeline.examples import Data
from qdqbert.pipeline.plans import Scheme, choose_targets
from qdqbert.pipeline.prepare import prepare
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.pipeline.trials import Trials
from qdqbert.quantization.search.units import Unit, make_units
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.analyze.plot import check_plot, plot_costs


def run(options: AnalyzeOptions, progress: Progress) -> AnalyzeReport:
    """Analyze a model."""
    if options.plot is not None:
        check_plot(place_of(options.plot))
    model = ModelPath.of_call(options, options.model, str(options.model))
    data = Data.of_call(
        options, eval_data=options.data, eval_name="data", max_heldout=options.max_examples
    )
    with temporary_folder() as scratch:
        source = open_source(model, scratch, progress)
        scheme = Scheme.of_call(options).of(source)
        name, weights_for = source.task.name, scheme.quantizers.weights_for
        [target] = choose_targets([options.target], name, weights_for)
        ready = prepare(source, [target], scheme, data, options, progress)
        [plan] = ready.plans
        units = make_units(plan.specs, ready.sited.weights(), options.granularity)
        whole, reports = measure(units, Trials.of(ready, plan), progress)
    metrics = ready.baseline.metrics
    report = AnalyzeReport(
        model=str(options.model),
        task=source.task.name,
        target=target.name,
        recipe=plan.recipe.name,
        metric=metrics[0].name if metrics else None,
        examples=len(ready.examples.heldout),
        whole=whole,
        units=reports,
        notices=tuple(dict.fromkeys(ready.notices)),
    )
    if options.plot is not None:
        plot_costs(report, place_of(options.plot))
    return report


def measure(
    units: Sequence[Unit], trials: Trials, progress: Progress
) -> tuple[Cost, tuple[UnitReport, ...]]:
    """Measure each unit by itself, and all that are left if the most costly ones stay in float.

    Returns:
        The cost of quantizing everything, and the units, the most costly one first.
    """
    every = {site for unit in units for site in unit.sites}
    total = sum(unit.cost for unit in units)
    with progress.stage("Quantizing one part at a time", len(units)) as advance:
        alone = {}
        for unit in units:
            alone[unit.name] = _cost(trials, every - set(unit.sites))
            advance()
    ordered = sorted(units, key=lambda unit: alone[unit.name].sqnr_db)
    whole, left, reports = _cost(trials, ()), set[str](), []
    with progress.stage("Leaving the most costly in float", len(units)) as advance:
        for unit in ordered:
            left |= set(unit.sites)
            reports.append(
                UnitReport(
                    name=unit.name,
                    sites=unit.sites,
                    share_percent=100 * unit.cost / total,
                    alone=alone[unit.name],
                    left=_cost(trials, left),
                )
            )
            advance()
    return whole, tuple(reports)


def _cost(trials: Trials, left: Collection[str]) -> Cost:
    """Return the cost of quantizing everything but some sites."""
    baseline, predictions = trials.baseline, trials.predictions(left)
    fidelity, scores = baseline.fidelity(predictions), baseline.scores_of(predictions)
    drop, is_error = None, False
    if scores:
        metric, reference = scores[0].metric(), baseline.scores[0].metric()
        drop, is_error = reference.value - metric.value, metric.is_error
        drop = -drop if is_error else drop
    return Cost(
        sqnr_db=fidelity.sqnr_db, flips_percent=fidelity.flips_percent, drop=drop, is_error=is_error
    )
