"""Read the settings of a folder, so that a wrong one is an error of its file.

Each function raises `CheckpointError` with the name of the setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.json_files import Fields
from qdqbert.encoders.config import MOST_CLASSES
from qdqbert.encoders.task_kinds import TaskSettings

_LARGEST_SEED = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantization:
    """The settings in `quantization.json` that are read again.

    Attributes:
        task: Name of the task in transformers.
        model_type: transformers' name of the family, if it is known.
        checkpoint: Name and digest of the float model, and more about it.
        max_length: Longest input in tokens.
        input_names: Names of the inputs, each `(batch, sequence)`, int64.
        output_names: Names of the outputs.
        classes: Number of outputs of the head, if it has one for each class.
        targets: Entry of each target: its `model`, `engines`, `recipe` and `sites`.
        task_options: Settings of the task.
        quantizer_options: Changes to the recipe.
        calibration: What the ranges were taken from; empty for folders of float checkpoints.
        embedding_ranges: Lists of the fields of `VectorRanges`, if they were found.
        versions: Versions of packages, by name.
        choice: Engine that the target `auto` chose, and the features of the CPU.
        adapters: Adapters that are not merged.
        takes_pairs: Whether a classifier takes pairs of texts, if it is known.
        unanswerable: Whether "no answer" is a possible answer.
        lacking_tokens: What the tokenizer lacks, in words.
        contradictions: What tokenizer_config.json says otherwise than tokenizer.json, in words.
    """

    task: str = ""
    model_type: str | None = None
    checkpoint: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_length: int = 0
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    classes: int | None = None
    targets: Mapping[str, Mapping[str, Any]]
    task_options: TaskSettings = dataclasses.field(default_factory=TaskSettings)
    quantizer_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    calibration: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    embedding_ranges: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choice: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    takes_pairs: bool | None = None
    unanswerable: bool = False
    lacking_tokens: Any = None
    contradictions: Any = None

    @property
    def calibration_fingerprints(self) -> frozenset[str]:
        """Fingerprints of the examples that ranges were taken from; see `data.rows.data`."""
        return frozenset(self.calibration.get("fingerprints", ()))


def read_quantization(fields: Fields) -> dict[str, Any]:
    """Return the attributes of a `Quantization`, checked."""
    checkpoint, calibration = fields.child("checkpoint"), fields.child("calibration")
    checkpoint.get("model_type")
    calibration.optional(calibration.names, "fingerprints")
    if fields.has("embedding_ranges"):
        _check_embedding_ranges(fields.child("embedding_ranges"))
    if fields.has("choice"):
        fields.child("choice").optional(fields.child("choice").text, "engine")
    for target in fields.by_name("targets").values():
        model = target.text("model")
        # A file of the folder.
        if Path(model).is_absolute() or ".." in Path(model).parts:
            raise target.refuse("model", model, "a file of the folder")
        target.names("engines")
        target.truth("is_proxy")
        target.child("sites")

    def of_object(name: str) -> Mapping[str, Any]:
        return fields.child(name).values if fields.has(name) else {}

    return {
        "task": checkpoint.text("task"),
        "model_type": checkpoint.optional(checkpoint.text, "model_type"),
        "checkpoint": checkpoint.values,
        "max_length": fields.integer("max_length"),
        "input_names": tuple(fields.names("inputs")),
        "output_names": tuple(fields.optional(fields.names, "outputs") or ()),
        "classes": fields.optional(fields.integer, "classes", 1, MOST_CLASSES),
        "targets": of_object("targets"),
        "task_options": read_task_options(fields),
        "quantizer_options": of_object("quantizer_options"),
        "calibration": calibration.values,
        "embedding_ranges": fields.values.get("embedding_ranges"),
        "versions": of_object("versions"),
        "choice": of_object("choice"),
        "adapters": tuple(fields.optional(fields.names, "adapters") or ()),
        "takes_pairs": fields.optional(fields.truth, "takes_pairs"),
        "unanswerable": bool(fields.optional(fields.truth, "unanswerable")),
        "lacking_tokens": fields.values.get("lacking_tokens"),
        "contradictions": fields.values.get("contradictions"),
    }


def _check_embedding_ranges(ranges: Fields) -> None:
    """Check the ranges of embeddings: three lists with a number for each dimension."""
    names = ("low", "high", "lengths")
    counts = {len(ranges.numbers(name)) for name in names}
    if len(counts) > 1 or 0 in counts:
        raise ranges.refuse("", dict(ranges.values), f"{', '.join(names)} of equal length, not 0")


def read_task_options(fields: Fields) -> TaskSettings:
    """Return the settings of the task; the defaults without any."""
    if not fields.has("task_options"):
        return TaskSettings()
    options = fields.child("task_options")
    for each in dataclasses.fields(TaskSettings):
        if each.name in options.values:
            if isinstance(each.default, str):
                options.text(each.name)
            elif isinstance(each.default, float):
                options.number(each.name)
            else:
                options.integer(each.name, 0, _LARGEST_SEED)
    if options.values.get("decision_temperature", 1) <= 0:
        raise options.refuse("decision_temperature", options.get("decision_temperature"), "above 0")
    known = {each.name for each in dataclasses.fields(TaskSettings)}
    if unknown := sorted(options.values.keys() - known):
        raise options.refuse(unknown[0], options.get(unknown[0]), "left out: it is unknown")
    return TaskSettings(**options.values)
