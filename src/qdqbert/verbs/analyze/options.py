"""Options of `analyze`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import Granularity, PoolingMode, RecipeName, TargetName, TaskName
from qdqbert.objects import Rows
from qdqbert.options import (
    CalibratorOptions,
    ColumnOptions,
    OnnxOptions,
    QuantizerOverrides,
    TaskOptions,
    check_options,
    normalize_options,
    option,
)
from qdqbert.verbs.quantize.options import QuantizeOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(
    CalibratorOptions, QuantizerOverrides, ColumnOptions, TaskOptions, OnnxOptions
):
    """Common options.

    Attributes:
        model: Checkpoint: a local folder or a hub id; or an .onnx file.
        data: Labeled examples to measure on, in the form of `calibration_data`. By default examples
            that were not used to calibrate.
        granularity: What is quantized together: all of an encoder layer, the input and the weight
            of a linear layer, or every site by itself.
        target: Runtime whose quantizers are analyzed.
        recipe: Which tensors to quantize. By default those of the checkpoint's own quantizers, or
            the target's default recipe.
        calibration_data: Examples to calibrate on: a .csv, .tsv, .jsonl, .json or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        task: Name of the task in transformers. Inferred from the checkpoint by default.
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default.
        max_examples: Number of examples to measure on at most. Everything is measured on them about
            twice for each unit.
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        batch_size: Number of examples in a batch.
        seed: Seed that draws the calibration examples.
        plot: File for a plot, .svg, .png or .pdf. Needs matplotlib (extra `train`).
    """

    model: str
    data: str | Rows | None = None
    granularity: Granularity = "linear"
    target: TargetName = "portable"
    recipe: RecipeName | None = None
    calibration_data: str | Rows | None = None
    task: TaskName | None = None
    pooling: PoolingMode | None = None
    max_examples: int = option(200, at_least=1)
    max_length: int | None = option(None, at_least=3)
    batch_size: int = option(8, at_least=1)
    seed: int = 0
    plot: str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        normalize_options(self)
        check_options(self)
        self.to_quantize()

    def to_quantize(self) -> QuantizeOptions:
        """Return the options of a call of `quantize` that quantizes in the same way."""
        ours = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        theirs = {each.name for each in dataclasses.fields(QuantizeOptions)}
        shared = {name: value for name, value in ours.items() if name in theirs}
        return QuantizeOptions(
            **shared, targets=(self.target,), eval_data=self.data, output="unused"
        )
