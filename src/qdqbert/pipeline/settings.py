"""Turn options into the settings that the layers below take."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.choices import CalibratorName
from qdqbert.common.errors import UserInputError, naming
from qdqbert.common.objects import Copied, SavedModel
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.data.rows.data import check_readable
from qdqbert.encoders.checkpoint.folder import check_name
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.quantization.recipes import PERCENTILE, QuantizerOptions
from qdqbert.runtime.artifact import is_artifact
from qdqbert.tasks.task import Task

# Options that name data.
_DATA = ("data", "calibration_data", "train_data", "eval_data")


def check_data(given: Any) -> None:
    """Check the data of a call as far as possible without a model, before one is loaded.

    Raises:
        UserInputError: A file does not exist or is not UTF-8, or a column does not exist.
    """
    for name in _DATA:
        data = getattr(given, name, None)
        if data is not None:
            with naming(name):
                check_readable(data, given.columns)


def check_model(
    given: str | Copied | None, parameter: str, *, takes_quantized: bool = False, advice: str = ""
) -> None:
    """Check the path of a model, unless it can be a name on the hub, before it is loaded.

    `advice` is a sentence for the message about a folder that `quantize` wrote, which is refused
    unless the call takes it.

    Raises:
        UserInputError: There is no such file or folder, or it is no model.
    """
    if given is None or isinstance(given, SavedModel):
        return
    path = Path(given)
    with naming(parameter):
        if path.suffix.lower() in (".onnx", ".xml") and not path.is_dir():
            if not path.is_file():
                raise UserInputError(f"File {given!r} does not exist. Check the path.")
        elif is_artifact(path):
            if not takes_quantized:
                raise UserInputError(
                    f"{given!r} is quantized already. Pass the float checkpoint that it was made "
                    f"from.{advice}"
                )
        elif path.exists() or str(given).startswith((".", "/", "~")):
            check_name(os.fspath(given))


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
    """Refuse lengths that a model cannot take."""
    if max(sequences, default=0) > limit:
        raise UserInputError(
            f"`sequences` contains {max(sequences)}, which exceeds the limit of {model!r}, "
            f"{limit} tokens.",
            argument="sequences",
        )


def task_options_of(
    task: Task, given: TaskOptions, stored: Mapping[str, Any], *, seed: int | None = None
) -> TaskSettings:
    """Return the settings of a task: those that were given, those that are stored, or defaults.

    `stored` are the settings, by name, that the model was trained or quantized with, and `seed` is
    for masked tokens.

    Raises:
        UserInputError: An option was given that belongs to another task.
    """
    of_model = ("pooling", "adapter")
    asked = {name: value for name, value in given.given().items() if name not in of_model}
    for name in asked.keys() - task.settings:
        raise UserInputError(
            f"`{name}={asked[name]}` does not apply to task {task.name!r}. Leave it out.",
            argument=name,
        )
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

    `usual` is the calibrator of a call that names none.
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
