"""Calibrate a checkpoint for a benchmark, as `qdqbert quantize` does."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from qdqbert.calibration.calibrate import Forward, as_tensors, run_observed, run_passes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.reference.sited_model import SitedModel, linear_weights, site_of
from qdqbert.data.tokenizing.encoding import Batch


def calibrate(
    sited: SitedModel,
    forward: Forward,
    batches: Sequence[Batch],
    *,
    sites: Collection[str],
    **settings: Any,
) -> CalibrationResult:
    """Choose the ranges of some sites.

    Args:
        sited: The model with quantizers.
        forward: Runs the model.
        batches: Inputs of the model.
        sites: Names of the activations that need a range.
        settings: Other settings of `CalibrationPlan`.
    """
    plan = CalibrationPlan(
        sites=[site_of(sited.quantizers[name]) for name in sites],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        corrects_biases=True,
        **settings,
    )
    run = functools.partial(run_observed, sited, forward, as_tensors(batches))
    return run_passes(run, plan)
