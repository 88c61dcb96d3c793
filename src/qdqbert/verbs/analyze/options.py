"""Options of `analyze`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import Granularity, RecipeName, TargetName, TaskName
from qdqbert.objects import Rows
from qdqbert.options import (
    Calibration,
    Columns,
    Onnx,
    Options,
    Quantizers,
    TaskOptions,
    option,
)
from qdqbert.verbs.quantize.options import QuantizeOptions


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AnalyzeOptions(Options):
    """Options of `analyze`, whose docstring describes them."""

    model: str
    data: str | Rows | None = None
    granularity: Granularity = "linear"
    target: TargetName = "portable"
    recipe: RecipeName | None = None
    calibration_data: str | Rows | None = None
    task: TaskName | None = None
    max_examples: int = option(200, at_least=1)
    max_length: int | None = option(None, at_least=3)
    batch_size: int = option(8, at_least=1)
    plot: str | None = None
    calibration: Calibration = option(Calibration(), without=("ranges_from", "ray"))
    quantizers: Quantizers = option(Quantizers(), without=("dedicated_qdq_pairs",))
    columns: Columns = Columns()
    task_options: TaskOptions = TaskOptions()
    onnx: Onnx = Onnx()

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        super().__post_init__()
        self.to_quantize()

    def to_quantize(self) -> QuantizeOptions:
        """Return the options of a call of `quantize` that quantizes in the same way."""
        ours = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        theirs = {each.name for each in dataclasses.fields(QuantizeOptions)}
        shared = {name: value for name, value in ours.items() if name in theirs}
        return QuantizeOptions(
            **shared, targets=(self.target,), eval_data=self.data, output="unused"
        )
