"""Turn options into the settings that the layers below take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdqbert import options
from qdqbert.choices import CalibratorName
from qdqbert.recipes import PERCENTILE, QuantizerOptions
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import TaskOptions


def columns_of(columns: options.ColumnOptions) -> Columns:
    """Return the columns to read."""
    return Columns(
        text=columns.text_column, text_pair=columns.text_pair_column, label=columns.label_column
    )


def task_options_of(
    given: options.TaskOptions, stored: Mapping[str, Any], *, seed: int | None = None
) -> TaskOptions:
    """Return the settings of a task: those that were given, those that are stored, or defaults.

    Args:
        given: Options of the call.
        stored: Settings that the model was trained or quantized with, by name.
        seed: Seed of masked tokens. The stored one if `None`.
    """
    names = [field.name for field in dataclasses.fields(options.TaskOptions)]
    values = {name: getattr(given, name) for name in names}
    asked = {name: value for name, value in values.items() if value is not None}
    seeded = {} if seed is None else {"seed": seed}
    return TaskOptions(**{**stored, **asked, **seeded})


def quantizer_options_of(
    overrides: options.QuantizerOverrides,
    *,
    calibrator: CalibratorName,
    percentile: float | None,
    recalibrate_weights: bool = False,
) -> QuantizerOptions:
    """Return quantizer options with all overrides and the calibrator filled in.

    Args:
        overrides: Options of the call.
        calibrator: Calibrator to use.
        percentile: Percentage to cover; `PERCENTILE` if `None` and the calibrator needs one.
        recalibrate_weights: Whether stored ranges of weights are dropped.
    """
    if calibrator == "percentile" and percentile is None:
        percentile = PERCENTILE
    return QuantizerOptions(
        **overrides.quantizer_changes(),
        calibrator=calibrator,
        percentile=percentile,
        recalibrate_weights=recalibrate_weights,
    )
