"""Measure what each part of a model costs if it is quantized."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import Granularity, RecipeName, TargetName, TaskName
from qdqbert.extras import require_quantize
from qdqbert.objects import Data
from qdqbert.options import Calibration, Columns, Onnx, Quantizers, TaskOptions, takes
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.settings import check_data

if TYPE_CHECKING:
    from qdqbert.evidence.reports import AnalyzeReport


@takes(AnalyzeOptions)
def analyze(
    model: str | Path,
    *,
    data: Data | None = None,
    granularity: Granularity = "linear",
    target: TargetName = "portable",
    recipe: RecipeName | None = None,
    calibration_data: Data | None = None,
    task: TaskName | None = None,
    max_examples: int = 200,
    max_length: int | None = None,
    batch_size: int = 8,
    plot: str | Path | None = None,
    calibration: Calibration = Calibration(),
    quantizers: Quantizers = Quantizers(),
    columns: Columns = Columns(),
    task_options: TaskOptions = TaskOptions(),
    onnx: Onnx = Onnx(),
    progress: Progress | bool = False,
) -> AnalyzeReport:
    """Measure what each layer, linear layer or site costs if it is quantized.

    Each unit is quantized by itself first. Then the most costly units are left in float, one after
    another. Everything is computed with fake quantization, without an engine. Nothing is written.

    Args:
        model: Checkpoint: a local folder or a hub id; or an .onnx file.
        data: Labeled examples to measure on, in the form of `calibration_data`. By default examples
            that were not used to calibrate.
        granularity: What is quantized together: all of an encoder layer, the input and the weight
            of a linear layer, or every site by itself.
        target: Runtime whose quantizers are analyzed.
        recipe: Which tensors to quantize. By default those of the checkpoint's own quantizers, or
            the target's default recipe.
        calibration_data: Examples to calibrate on: a .csv, .jsonl, .parquet or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        task: Name of the task in transformers. Inferred from the checkpoint by default.
        max_examples: Number of examples to measure on at most. Everything is measured on them about
            twice for each unit.
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        batch_size: Number of examples in a batch.
        plot: File for a plot, .svg, .png or .pdf. Needs matplotlib (extra `train`).
        calibration: How ranges are found.
        quantizers: Changes to the quantizers of the recipe.
        columns: Columns of the data, where their names do not tell.
        task_options: Settings of the task.
        onnx: Names and the tokenizer of an .onnx file.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The cost of each unit: SQNR, changed predictions, and the loss of the metric.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A site saw no usable value.

    Example:
        >>> report = qdqbert.analyze("./my-classifier", calibration_data="train.csv")
        >>> report.units[0].name
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`analyze`")
    options = AnalyzeOptions(**arguments)
    check_data(options)
    from qdqbert.verbs.analyze.run import run

    return run(options, shown)
