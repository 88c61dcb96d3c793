"""Quantize a float model to INT8 and measure the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.artifact import check_output
from qdqbert.choices import RecipeName, TargetChoice, TaskName, VerificationData
from qdqbert.extras import require_quantize
from qdqbert.objects import Data, ModelLike, saved
from qdqbert.options import Calibration, Columns, Limits, Onnx, Quantizers, TaskOptions, takes
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.settings import check_data

if TYPE_CHECKING:
    from qdqbert.evidence.reports import QuantizeReport


@takes(QuantizeOptions)
def quantize(
    model: ModelLike | None = None,
    output: str | Path | None = None,
    *,
    targets: Sequence[TargetChoice] = (),
    recipe: RecipeName | None = None,
    calibration_data: Data | None = None,
    eval_data: Data | None = None,
    task: TaskName | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    benchmark: bool = True,
    overwrite: bool = False,
    report: str | Path | None = None,
    verification_data: VerificationData = "built-in",
    limits: Limits = Limits(),
    calibration: Calibration = Calibration(),
    quantizers: Quantizers = Quantizers(),
    columns: Columns = Columns(),
    task_options: TaskOptions = TaskOptions(),
    onnx: Onnx = Onnx(),
    progress: Progress | bool = False,
) -> QuantizeReport:
    """Quantize a checkpoint or an ONNX model to INT8, and measure the result.

    Writes a folder with one graph for each target, the tokenizer, the config, the ranges and a
    report. The folder is written completely or not at all.

    Limits such as `max_drop` are met by leaving the most sensitive linear layers in float. The
    reference is the float model. If a limit cannot be met, or there are too few examples to show
    it, no folder is written, and the report says why.

    Args:
        model: Checkpoint: a local folder or a hub id; or an .onnx file. In Python also `(model,
            tokenizer)` of transformers, a pipeline, a `SentenceTransformer` or a `CrossEncoder`. By
            default the packaged all-MiniLM-L6-v2 (extra `demo`).
        output: Folder to write: by default, the name of the model and `-int8`, in the current
            folder.
        targets: Runtimes to write a graph for, all from one calibration. By default those of the
            engines that are installed here: "native", "onnxruntime" and "openvino". "auto" measures
            all of these engines on the calibration data, and writes the fastest graph that is close
            enough to float.
        recipe: Which tensors to quantize. By default those of the checkpoint's own quantizers, or
            the target's default recipe.
        calibration_data: Examples to calibrate on: a .csv, .jsonl, .parquet or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        eval_data: Labeled examples to compare INT8 with float on, in the form of
            `calibration_data`. If only one of the two is given, it is split: a part calibrates, and
            INT8 is compared with float on the rest, with metrics if there are labels.
        task: Name of the task in transformers. Inferred from the checkpoint by default.
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        batch_size: Number of examples in a batch.
        benchmark: Measure the latency of INT8 and of float, which takes 10 seconds or more for each
            graph and engine. Measured by default.
        overwrite: Replace an output folder that an earlier call wrote.
        report: File for the report, which is also written if a limit is not met. HTML if its name
            ends in .html, JSON otherwise.
        verification_data: Inputs that are stored with their results in float, for `verify`.
            "built-in" are English sentences of this package. "held-out" are examples of
            `calibration_data` or `eval_data`, whose tokens can be turned back into their texts.
        limits: Limits that are met, if need be, by leaving linear layers in float.
        calibration: How ranges are found.
        quantizers: Changes to the quantizers of the recipe.
        columns: Columns of the data, where their names do not tell.
        task_options: Settings of the task.
        onnx: Names and the tokenizer of an .onnx file.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        What was written and measured: fidelity to the float model on held-out examples, agreement
        with PyTorch's fake quantization, size and latency. The same is in `report.json`
        and, for people, in `report.html`.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A site saw no usable value.
        GraphError: A graph does not have the expected form.

    Example:
        >>> report = qdqbert.quantize(
        ...     "./my-classifier",
        ...     "./my-classifier-int8",
        ...     calibration_data="train.csv",
        ...     targets=["onnxruntime", "openvino"],
        ... )
        >>> report.targets[0].fidelity.sqnr_db
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`quantize`")
    with saved(model, "model") as arguments["model"]:
        options = QuantizeOptions(**arguments)
        check_output(options.output_folder, overwrite=options.overwrites)
        check_data(options)
        from qdqbert.verbs.quantize.run import run

        return run(options, shown)
