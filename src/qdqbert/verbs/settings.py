"""Turn options into the settings that the layers below take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert import options
from qdqbert.choices import CalibratorName
from qdqbert.errors import UserInputError, naming
from qdqbert.recipes import PERCENTILE, QuantizerOptions
from qdqbert.tasks.data import Columns, check_readable
from qdqbert.tasks.task import TaskOptions

# Options that name data.
_DATA = ("data", "calibration_data", "train_data", "eval_data")


def columns_of(columns: options.ColumnOptions) -> Columns:
    """Return the columns to read."""
    return Columns(
        text=columns.text_column, text_pair=columns.text_pair_column, label=columns.label_column
    )


def check_data(given: Any) -> None:
    """Check the data of a call as far as no model is needed for it, before one is loaded.

    Args:
        given: Options of the call.

    Raises:
        UserInputError: A file does not exist or is not UTF-8, or a column does not exist.
    """
    for name in _DATA:
        data = getattr(given, name, None)
        if data is not None:
            with naming(name):
                check_readable(data, columns_of(given))


def input_length(asked: int | None, usual: int | None, limit: int) -> tuple[int, list[str]]:
    """Return the longest input in tokens, and a notice if the request exceeds the limit.

    Args:
        asked: `max_length` of the call.
        usual: Length without a request: that which the model was trained with, or the task's. The
            limit if `None`.
        limit: Limit of the model.
    """
    if asked is not None and asked > limit:
        return limit, [
            f"`max_length={asked}` exceeds the model's limit of {limit} tokens, which is used."
        ]
    return min(asked or usual or limit, limit), []


def check_sequences(sequences: Sequence[int], model: str, limit: int) -> None:
    """Refuse lengths that a model cannot take.

    Args:
        sequences: Lengths in tokens.
        model: Name of the model, for the message.
        limit: Longest input of the model in tokens.

    Raises:
        UserInputError: One of them exceeds the limit.
    """
    if max(sequences) > limit:
        raise UserInputError(
            f"`sequences` contains {max(sequences)}, which exceeds the limit of {model!r}, "
            f"{limit} tokens.",
            argument="sequences",
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
