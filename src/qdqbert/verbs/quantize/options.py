"""Options of `quantize`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from qdqbert.checkpoint.demo import DEMO_NAME
from qdqbert.choices import CalibratorName, RecipeName, TargetChoice, TaskName, VerificationData
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows, SavedModel
from qdqbert.options import (
    Calibration,
    Columns,
    Limits,
    Onnx,
    Options,
    Quantizers,
    TaskOptions,
    check_onnx_options,
    check_percentile,
    is_onnx_file,
    option,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class QuantizeOptions(Options):
    """Options of `quantize`, whose docstring describes them."""

    model: str | SavedModel | None = None
    output: str | None = option(None, short="o")
    targets: tuple[TargetChoice, ...] = option((), flag="target")
    recipe: RecipeName | None = None
    calibration_data: str | Rows | None = None
    eval_data: str | Rows | None = None
    task: TaskName | None = None
    max_length: int | None = option(None, at_least=3)
    batch_size: int = option(8, at_least=1)
    benchmark: bool = True
    overwrite: bool = False
    report: str | None = None
    verification_data: VerificationData = "built-in"
    limits: Limits = Limits()
    calibration: Calibration = Calibration()
    quantizers: Quantizers = Quantizers()
    columns: Columns = Columns()
    task_options: TaskOptions = TaskOptions()
    onnx: Onnx = Onnx()

    @property
    def output_folder(self) -> Path:
        """The output folder: by default the name of the model, and `-int8`."""
        if self.output is not None:
            return Path(self.output)
        if self.model is None:
            return Path(f"qdqbert-{DEMO_NAME}")
        path = Path(self.model)
        # "." has no name.
        path = path.resolve() if path.is_dir() else path
        return Path(f"{path.stem if self.is_onnx else path.name}-int8")

    @property
    def overwrites(self) -> bool:
        """Whether an existing output folder is replaced.

        The demo replaces its own folder, but not one that was named without a model.
        """
        return self.overwrite or (self.model is None and self.output is None)

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        super().__post_init__()
        if not self.is_onnx:
            check_onnx_options(self.onnx, self.model)
        elif self.task_options.pooling is not None:
            raise UserInputError(
                f"`pooling={self.task_options.pooling!r}` applies to checkpoints only. The outputs "
                f"of `model={self.model!r}` are fixed. Leave `pooling` out.",
                argument="pooling",
            )
        has_data = (self.eval_data, self.calibration_data) != (None, None)
        if self.limits.max_drop is not None and not has_data:
            raise UserInputError(
                f"`max_drop={self.limits.max_drop:g}` compares metrics, which need labels. Pass "
                "labeled examples as `eval_data`.",
                argument="max_drop",
            )
        if self.is_auto:
            self._check_auto()
        check_percentile(self.calibration, self.calibrator_used)

    def _check_auto(self) -> None:
        if len(set(self.targets)) > 1:
            others = ", ".join(repr(name) for name in self.targets if name != "auto")
            raise UserInputError(
                f"`targets` contains 'auto', which chooses one target itself, and {others}. Leave "
                "one of the two out.",
                argument="targets",
            )
        if not self.benchmark:
            raise UserInputError(
                "`benchmark=False` measures no speed, by which `targets=['auto']` chooses. Leave "
                "one of the two out.",
                argument="benchmark",
            )

    @property
    def is_auto(self) -> bool:
        """Whether the call chooses the target itself."""
        return "auto" in self.targets

    @property
    def is_onnx(self) -> bool:
        """Whether the model is an .onnx file rather than a checkpoint."""
        return self.model is not None and is_onnx_file(self.model)

    @property
    def calibrator_used(self) -> CalibratorName:
        """The calibrator, or its default."""
        return self.calibration.calibrator or "percentile"
