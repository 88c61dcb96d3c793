"""Turn options into the settings that the layers below take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.choices import CalibratorName
from qdqbert.errors import UserInputError, naming
from qdqbert.options import Calibration, Quantizers, TaskOptions
from qdqbert.recipes import PERCENTILE, QuantizerOptions
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.data import check_readable

# Options that name data.
_DATA = ("data", "calibration_data", "train_data", "eval_data")


def check_data(given: Any) -> None:
    """Check the data of a call as far as no model is needed for it, before one is loaded.

    Raises:
        UserInputError: A file does not exist or is not UTF-8, or a column does not exist.
    """
    for name in _DATA:
        data = getattr(given, name, None)
        if data is not None:
            with naming(name):
                check_readable(data, given.columns)


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
    given: TaskOptions, stored: Mapping[str, Any], *, seed: int | None = None
) -> TaskSettings:
    """Return the settings of a task: those that were given, those that are stored, or defaults.

    Args:
        given: Options of the call.
        stored: Settings that the model was trained or quantized with, by name.
        seed: Seed of masked tokens. The stored one if `None`.
    """
    asked = {name: value for name, value in given.given().items() if name != "pooling"}
    seeded = {} if seed is None else {"seed": seed}
    return TaskSettings(**{**stored, **asked, **seeded})


def changes_of(quantizers: Quantizers) -> dict[str, Any]:
    """Return the changes to the quantizers of a recipe that were given, by name."""
    names = {field.name for field in dataclasses.fields(QuantizerOptions)}
    return {name: value for name, value in quantizers.given().items() if name in names}


def quantizer_options_of(
    quantizers: Quantizers, calibration: Calibration, *, usual: CalibratorName
) -> QuantizerOptions:
    """Return quantizer options with all overrides and the calibrator filled in.

    Args:
        quantizers: Changes to quantizers.
        calibration: How ranges are found.
        usual: Calibrator of a call that names none.
    """
    calibrator, percentile = calibration.calibrator or usual, calibration.percentile
    if calibrator == "percentile" and percentile is None:
        percentile = PERCENTILE
    return QuantizerOptions(
        **changes_of(quantizers),
        calibrator=calibrator,
        percentile=percentile,
        recalibrate_weights=calibration.recalibrate_weights,
    )
