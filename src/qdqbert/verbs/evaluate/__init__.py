"""Compute the metrics of a model on labeled data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import EngineName, ProviderName, TargetName, TaskName
from qdqbert.extras import require_quantize
from qdqbert.objects import Data
from qdqbert.options import Columns, Limits, Onnx, TaskOptions, takes
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.settings import check_data

if TYPE_CHECKING:
    from qdqbert.evidence.reports import EvaluateReport


@takes(EvaluateOptions)
def evaluate(
    model: str | Path,
    data: Data,
    *,
    reference: str | Path | None = None,
    task: TaskName | None = None,
    engine: EngineName | None = None,
    provider: ProviderName | None = None,
    target: TargetName | None = None,
    max_examples: int | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    allow_leakage: bool = False,
    output: str | Path | None = None,
    limits: Limits = Limits(),
    columns: Columns = Columns(),
    task_options: TaskOptions = TaskOptions(),
    onnx: Onnx = Onnx(),
    progress: Progress | bool = False,
) -> EvaluateReport:
    """Compute the metrics of a task for a quantized folder, a checkpoint or an ONNX model.

    Args:
        model: Folder that `quantize` wrote, a checkpoint (a local folder or a hub id), or an .onnx
            file, float or quantized.
        data: Labeled examples: a .csv, .jsonl, .json or .parquet file, a folder, CoNLL
            columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or `datasets.Dataset`.
        reference: Float checkpoint or .onnx file to compare with, example by example. An .onnx file
            runs on ONNX Runtime.
        task: Name of the task in transformers. Inferred from the model by default.
        engine: Library that runs the model. By default the one that `load` takes for a quantized
            folder, ONNX Runtime for an .onnx file, and PyTorch for a checkpoint, which the native
            engine runs in INT8, as `load` does.
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        target: Graph to evaluate, if a folder has several for one engine. By default the one that
            was made for the engine.
        max_examples: Number of examples to read at most. All by default.
        max_length: Longest input in tokens. The limit that the model was quantized with, or that of
            the task or the checkpoint, by default.
        batch_size: Number of examples in a batch.
        allow_leakage: Also score examples that the model was calibrated on. The report has their
            number.
        output: Folder for `predictions.jsonl`, `report.html` and the files of the task. With a
            reference, `changed.jsonl` lists the predictions that differ, the largest change first.
        limits: What has to hold, compared with the reference.
        columns: Columns of the data, where their names do not tell.
        task_options: Settings of the task.
        onnx: Names and the tokenizer of an .onnx file.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The metrics, and the fidelity to the reference if one was given. A limit is met if it holds
        for the whole 95 % interval of what was measured; `limits` has the verdicts, and
        `meets_limits` tells whether all limits are met.

    Raises:
        UserInputError: An argument or a file cannot be used, or the model was calibrated on some
            of the examples.

    Example:
        >>> report = qdqbert.evaluate(
        ...     "./my-classifier-int8", "dev.csv", reference="./my-classifier"
        ... )
        >>> report.metrics
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`evaluate`")
    options = EvaluateOptions(**arguments)
    check_data(options)
    from qdqbert.verbs.evaluate.run import run

    return run(options, shown)
