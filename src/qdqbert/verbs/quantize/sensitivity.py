"""Measure what each layer of a model costs if it is quantized."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.encoding import Batch
from qdqbert.evidence.fidelity import signal_and_noise, to_decibels
from qdqbert.evidence.reports import Sensitivity
from qdqbert.search.units import make_units
from qdqbert.targets.target import Plan
from qdqbert.verbs.inference import Baseline, predict_batches
from qdqbert.verbs.quantize.mixed_precision import in_float
from qdqbert.verbs.quantize.source.sited import SitedSource


def layer_sensitivity(
    plan: Plan,
    sited: SitedSource,
    calibration: CalibrationResult,
    baseline: Baseline,
    batches: Sequence[Batch],
) -> tuple[Sensitivity, ...]:
    """Quantize one layer at a time, and return the SQNR of the outputs to the float model's.

    Everything is computed with fake quantization, without an engine.

    Args:
        plan: How the model is quantized.
        sited: The model with sites.
        calibration: Ranges of the plan's recipe.
        baseline: The float model's results.
        batches: Inputs to measure on, with the indices that they have in `baseline`.

    Returns:
        One entry for each layer, and for each site outside the layers, in the order of the model.
    """
    units = make_units(plan.specs, sited.weights(), "layer")
    every = {site for unit in units for site in unit.sites}

    def sqnr_db(left: Collection[str]) -> float:
        with sited.quantized_runner(in_float(plan, left), calibration) as runner:
            found = predict_batches(baseline.task, runner, batches, baseline.encoded.features)
        signal, expected = baseline.task.signal, baseline.predictions
        pairs = [
            signal_and_noise(signal(expected[index]), signal(each)) for index, each in found.items()
        ]
        return to_decibels(sum(each for each, _ in pairs), sum(each for _, each in pairs))

    return tuple(
        Sensitivity(name=unit.name, sqnr_db=sqnr_db(every - set(unit.sites))) for unit in units
    )
