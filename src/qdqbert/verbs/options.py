"""What `quantize` can be asked for, checked as a whole before anything is loaded."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from qdqbert.calibration.statistics import calibrator_of
from qdqbert.choices import CalibratorName, Embeddings
from qdqbert.errors import UserInputError
from qdqbert.numerics.ranges import Calibrator
from qdqbert.recipes import PERCENTILE, QuantizerOptions, build_recipe
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import TaskOptions
from qdqbert.verbs.graph_files import is_graph_file

Isa = Literal["any", "vnni"]
"""Instructions of the CPU that a graph is for: `vnni` lets weights have all of 8 bits."""

_OWN_WORDS = (
    *("model", "targets", "columns", "benchmark", "overwrite", "quantizer_options", "task_options"),
    "input_names",
)
# Options that are no `--name value` of a command line.


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What `quantize` was asked for; see its arguments."""

    model: str | None = None
    output: str | None = None
    tokenizer: str | None = None
    input_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    task: str | None = None
    calibration_data: str | None = None
    columns: Columns = dataclasses.field(default_factory=Columns)
    task_options: TaskOptions = dataclasses.field(default_factory=TaskOptions)
    ranges: str | None = None
    calibration_samples: int = 300
    max_length: int | None = None
    batch_size: int = 8
    calibrator: CalibratorName | None = None
    percentile: float | None = None
    recipe: str | None = None
    recalibrate: bool = False
    isa: Isa = "any"
    dedicated_qdq_pairs: bool = False
    quantizer_options: QuantizerOptions = dataclasses.field(default_factory=QuantizerOptions)
    targets: tuple[str, ...] = ()
    embeddings: Embeddings = "int8"
    seed: int = 0
    overwrite: bool = False
    benchmark: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            object.__setattr__(self, "targets", (self.targets,))
        for name in ("model", "output", "calibration_data", "tokenizer", "ranges"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else str(value))
        for name, least in (("calibration_samples", 1), ("batch_size", 1), ("max_length", 3)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserInputError(
                    f"`--{name.replace('_', '-')}` must be at least {least}, got {value}."
                )
        if not self.is_graph:
            for name in ("tokenizer", "input_names"):
                if getattr(self, name):
                    raise UserInputError(
                        f"`--{name.replace('_', '-')}` is for .onnx files; {self.model!r} is none."
                    )
        if self._switched not in (None, self.calibrator) and self.calibrator is not None:
            raise UserInputError(
                f"`calibrator` is {self.calibrator!r}, and {self._switched!r} in the switches. "
                "Name one."
            )
        if self.percentile is not None and self.calibrator_used != "percentile":
            raise UserInputError(
                f"`--percentile {self.percentile}` needs `--calibrator percentile`, got "
                f"`{self.calibrator_used}`."
            )
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise UserInputError(
                f"`--percentile` must be above 0 and at most 100, got {self.percentile}."
            )
        if self.ranges is not None:
            for name in ("calibrator", "percentile", "calibration_samples", "recalibrate"):
                if getattr(self, name) != getattr(type(self), name):
                    raise UserInputError(
                        f"`--{name.replace('_', '-')}` is about taking ranges; `--ranges "
                        f"{self.ranges}` has them. Leave one of the two out."
                    )
        choices = (
            ("calibrator", (None, *get_args(CalibratorName))),
            ("embeddings", ("int8", "float")),
            ("isa", get_args(Isa)),
        )
        for name, known in choices:
            if (value := getattr(self, name)) not in known:
                words = ", ".join(word for word in known if word is not None)
                raise UserInputError(f"`--{name} {value}` is unknown. Known: {words}.")
        if self.recipe is not None:
            build_recipe(self.recipe)
        if self.model is not None and self.output is None:
            raise UserInputError("`--output` is missing: the folder to write.")

    @property
    def is_graph(self) -> bool:
        """Whether the model is an .onnx file rather than a checkpoint."""
        return self.model is not None and is_graph_file(self.model)

    def trained(self, trained: Mapping[str, Any]) -> Self:
        """These, where nothing else is asked for as the checkpoint was trained.

        Args:
            trained: What `artifact.read_training` says of it.
        """
        stored = trained.get("task_options", {})
        asked = {
            field.name: value
            for field in dataclasses.fields(self.task_options)
            if (value := getattr(self.task_options, field.name)) != field.default
        }
        return dataclasses.replace(
            self,
            max_length=self.max_length or trained.get("max_length"),
            task_options=TaskOptions(**{**stored, **asked}),
        )

    @property
    def recipe_switches(self) -> QuantizerOptions:
        """The switches, with the calibrator in force."""
        return dataclasses.replace(
            self.quantizer_options, calibrator=self.calibrator_used, percentile=self.percentile_used
        )

    def command(self) -> str:
        """The command line that does the same."""
        words = ["qdqbert", "quantize", *([self.model] if self.model else [])]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _OWN_WORDS:
                continue
            if value is not None and value != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                words += [flag] if value is True else [flag, str(value)]
        for option in dataclasses.fields(self.task_options):
            value = getattr(self.task_options, option.name)
            if value != option.default and option.name != "seed":
                words += [f"--{option.name.replace('_', '-')}", str(value)]
        for role in dataclasses.fields(self.columns):
            column = getattr(self.columns, role.name)
            if column is not None:
                words += [f"--{role.name.replace('_', '-')}-column", column]
        for role_name, graph_name in self.input_names.items():
            words += ["--input-names", f"{role_name}={graph_name}"]
        words += [word for name in self.targets for word in ("--target", name)]
        for name, value in self.quantizer_options.to_dict().items():
            flag = f"--{name.replace('_', '-')}"
            if getattr(self, name, None) is not None:
                continue  # named above as an option
            values = value if isinstance(value, list) else [value]
            words += [flag] if value is True else [w for v in values for w in (flag, str(v))]
        return shlex.join(words)

    @property
    def calibrator_used(self) -> CalibratorName:
        """The calibrator in force, named as an option or as a switch."""
        return self.calibrator or self._switched or "percentile"

    @property
    def percentile_used(self) -> float | None:
        """The percentile in force; `None` for the other calibrators."""
        if self.calibrator_used != "percentile":
            return None
        return self.percentile or self.quantizer_options.percentile or PERCENTILE

    @property
    def _switched(self) -> CalibratorName | None:
        """What the switches name; `max` is what they have at rest."""
        return (
            None
            if self.quantizer_options.calibrator == "max"
            else self.quantizer_options.calibrator
        )

    def make_calibrator(self) -> Calibrator:
        """The calibrator that was asked for."""
        return calibrator_of(self.recipe_switches)
