"""Calibrate a model with sites, as `qdqbert quantize` does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
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
    advance: Callable[[], None] = lambda: None,
    **settings: Any,
) -> CalibrationResult:
    """Choose the ranges of some sites. `settings` are those of `CalibrationPlan`."""
    plan = CalibrationPlan(
        sites=[site_of(sited.quantizers[name]) for name in sites],
        all_sites=sited.sites,
        weights=linear_weights(sited),
        **settings,
    )
    run = functools.partial(run_observed, sited, forward, as_tensors(batches), advance=advance)
    return run_passes(run, plan)
