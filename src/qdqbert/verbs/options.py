"""What `quantize` can be asked for, checked as a whole before anything is loaded."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Literal

from qdqbert.errors import UserInputError
from qdqbert.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.recipes import Embeddings
from qdqbert.tasks.data import Columns

CalibratorName = Literal["max", "percentile", "mse", "entropy"]
_CALIBRATORS = ("max", "percentile", "mse", "entropy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What `quantize` was asked for; see its arguments."""

    model: str | None = None
    output: str | None = None
    task: str | None = None
    calibration_data: str | None = None
    columns: Columns = dataclasses.field(default_factory=Columns)
    calibration_samples: int = 300
    max_length: int | None = None
    batch_size: int = 8
    calibrator: CalibratorName = "max"
    percentile: float | None = None
    recipe: str | None = None
    targets: tuple[str, ...] = ()
    embeddings: Embeddings = "int8"
    seed: int = 0
    overwrite: bool = False
    benchmark: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            object.__setattr__(self, "targets", (self.targets,))
        for name in ("model", "output", "calibration_data"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else str(value))
        for name, least in (("calibration_samples", 1), ("batch_size", 1), ("max_length", 3)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserInputError(
                    f"`--{name.replace('_', '-')}` must be at least {least}, got {value}."
                )
        if self.percentile is not None and self.calibrator != "percentile":
            raise UserInputError(
                f"`--percentile {self.percentile}` needs `--calibrator percentile`, got "
                f"`{self.calibrator}`."
            )
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise UserInputError(
                f"`--percentile` must be above 0 and at most 100, got {self.percentile}."
            )
        choices = (("calibrator", _CALIBRATORS), ("embeddings", ("int8", "float")))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise UserInputError(
                    f"`--{name} {getattr(self, name)}` is unknown. Known: {', '.join(known)}."
                )
        if self.model is not None and self.output is None:
            raise UserInputError("`--output` is missing: the folder to write.")

    def command(self) -> str:
        """The command line that does the same."""
        words = ["qdqbert", "quantize", *([self.model] if self.model else [])]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("model", "targets", "columns", "benchmark", "overwrite"):
                continue
            if value is not None and value != field.default:
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        for role in dataclasses.fields(self.columns):
            column = getattr(self.columns, role.name)
            if column is not None:
                words += [f"--{role.name.replace('_', '-')}-column", column]
        words += [word for name in self.targets for word in ("--target", name)]
        return shlex.join(words)

    @property
    def percentile_used(self) -> float | None:
        """The percentile in force; `None` for the other calibrators."""
        if self.calibrator != "percentile":
            return None
        return Percentile().percentile if self.percentile is None else self.percentile

    def make_calibrator(self) -> Calibrator:
        """The calibrator that was asked for."""
        match self.calibrator:
            case "max":
                return Max()
            case "percentile":
                assert self.percentile_used is not None
                return Percentile(self.percentile_used)
            case "mse":
                return Mse()
            case "entropy":
                return Entropy()
