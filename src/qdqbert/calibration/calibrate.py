"""Calibrate a model: run it over batches and choose ranges and `pre_quant_scale`s."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.passes import CalibrationPlan, Run
from qdqbert.calibration.statistics import Observer
from qdqbert.encoding import Batch
from qdqbert.insert.sited import SitedModel, linear_weights, observing, site_of
from qdqbert.numerics.ranges import Calibrator
from qdqbert.recipes import QuantizerOptions
from qdqbert.spec import Smoothing

Forward = Callable[[Mapping[str, Tensor]], object]


def run_passes(run: Run, plan: CalibrationPlan) -> Calibration:
    """Calibrate anything that can be run and observed.

    Args:
        run: Runs it over all batches. Called once for each of `plan.passes`.
        plan: Settings of the calibration.

    Raises:
        CalibrationError: A site saw no value, or one that is not finite.
    """
    found = Calibration()
    for each in plan.passes:
        found = each(run, plan, found)
    return found


def calibrate(
    sited: SitedModel,
    forward: Forward,
    batches: Sequence[Batch],
    *,
    sites: Collection[str],
    calibrator: Calibrator,
    smoothing: Smoothing | None = None,
    unsmoothed_sites: Collection[str] = (),
    clips_residuals: bool = False,
    quantizer_options: QuantizerOptions | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Calibration:
    """Calibrate a float model that has quantizers at its sites.

    Args:
        sited: The model with quantizers.
        forward: Runs the model on inputs by name, each `(batch, seq)`.
        batches: What the model is run on, once for each pass.
        sites: Names of the activations that need a range.
        calibrator: Rule that turns statistics into a range.
        smoothing: Which inputs get a `pre_quant_scale`.
        unsmoothed_sites: Names of the activations that also need a range without a scale.
        clips_residuals: Clip the ranges of residual adds to what LayerNorm can distinguish.
        quantizer_options: Bits, and how ranges are clipped and shared afterwards.
        advance: Called after each batch of each pass.

    Raises:
        CalibrationError: A site saw no value, or one that is not finite.
    """
    plan = CalibrationPlan(
        sites=[site_of(sited.quantizers[name]) for name in sites],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        calibrator=calibrator,
        smoothing=smoothing,
        unsmoothed_sites=frozenset(unsmoothed_sites),
        clips_residuals=clips_residuals,
        quantizer_options=quantizer_options or QuantizerOptions(),
    )
    run = functools.partial(run_observed, sited, forward, batches, advance=advance)
    return run_passes(run, plan)


def run_observed(
    sited: SitedModel,
    forward: Forward,
    batches: Sequence[Batch],
    observer: Observer,
    scales: Mapping[str, Tensor],
    *,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Run a model over all batches and show its activations to an observer. See `Run`."""
    with observing(sited, observer.observe, scales), torch.inference_mode():
        for batch in batches:
            inputs = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
            # A multiple choice model folds the axis of choices into the batch.
            observer.start_batch(inputs["attention_mask"].flatten(0, -2))
            forward(inputs)
            advance()
