"""Check the settings of a folder that code reads, so that a wrong one is an error of its file.

Each function raises `CheckpointError` with the name of the setting.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from qdqbert.common.json_files import Fields
from qdqbert.encoders.config import MOST_CLASSES
from qdqbert.encoders.task_kinds import TaskSettings

_LARGEST_SEED = 2**63 - 1


def check_quantization(fields: Fields) -> None:
    """Check the fields of `quantization.json` that are read."""
    checkpoint = fields.child("checkpoint")
    checkpoint.text("task")
    if checkpoint.get("model_type") is not None:
        checkpoint.text("model_type")
    fields.integer("max_length")
    for name in ("adapters", "inputs"):
        if name == "inputs" or fields.has(name):
            fields.names(name)
    if fields.has("outputs"):
        fields.names("outputs")
    if fields.has("classes"):
        fields.integer("classes", high=MOST_CLASSES)
    for name in ("takes_pairs", "unanswerable"):
        if fields.has(name):
            fields.truth(name)
    check_task_options(fields)
    calibration = fields.child("calibration")
    if calibration.has("fingerprints"):
        calibration.names("fingerprints")
    if fields.has("embedding_ranges"):
        _check_embedding_ranges(fields.child("embedding_ranges"))
    if fields.has("versions"):
        fields.child("versions")
    if fields.has("choice"):
        choice = fields.child("choice")
        if choice.has("engine"):
            choice.text("engine")
    for target in fields.by_name("targets").values():
        model = target.text("model")
        # A file of the folder.
        if Path(model).is_absolute() or ".." in Path(model).parts:
            raise target.refuse("model", model, "a file of the folder")
        target.names("engines")
        target.truth("is_proxy")
        target.child("sites")


def _check_embedding_ranges(ranges: Fields) -> None:
    """Check the ranges of embeddings: three lists with a number for each dimension."""
    names = ("low", "high", "lengths")
    counts = {len(ranges.numbers(name)) for name in names}
    if len(counts) > 1 or 0 in counts:
        raise ranges.refuse("", dict(ranges.values), f"{', '.join(names)} of equal length, not 0")


def check_task_options(fields: Fields) -> None:
    """Check the settings of the task."""
    if not fields.has("task_options"):
        return
    options = fields.child("task_options")
    for each in dataclasses.fields(TaskSettings):
        if each.name in options.values:
            if isinstance(each.default, float):
                options.number(each.name)
            else:
                options.integer(each.name, 0, _LARGEST_SEED)
    known = {each.name for each in dataclasses.fields(TaskSettings)}
    if unknown := sorted(options.values.keys() - known):
        raise options.refuse(unknown[0], options.get(unknown[0]), "left out: it is unknown")
