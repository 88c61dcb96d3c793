"""Fine-tunes a model, in float or with quantizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.artifact import check_output
from qdqbert.choices import QatRanges, RecipeName, TaskName
from qdqbert.extras import require_quantize
from qdqbert.objects import Data
from qdqbert.options import Calibration, Columns, Quantizers, TaskOptions, takes
from qdqbert.progress import Progress, progress_of
from qdqbert.training.distillation import Distillation
from qdqbert.verbs.settings import check_data
from qdqbert.verbs.train.options import Optimization, TrainOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reports import TrainReport


@takes(TrainOptions)
def train(
    model: str | Path,
    output: str | Path,
    *,
    train_data: Data,
    eval_data: Data | None = None,
    task: TaskName | None = None,
    qat: bool = False,
    recipe: RecipeName = "full",
    qat_ranges: QatRanges = "fixed",
    max_length: int | None = None,
    max_train_examples: int | None = None,
    max_eval_examples: int | None = None,
    resume: bool = False,
    keep_checkpoints: bool = False,
    tensorboard: bool = False,
    overwrite: bool = False,
    optimization: Optimization = Optimization(),
    distillation: Distillation = Distillation(),
    calibration: Calibration = Calibration(),
    quantizers: Quantizers = Quantizers(),
    columns: Columns = Columns(),
    task_options: TaskOptions = TaskOptions(),
    progress: Progress | bool = False,
) -> TrainReport:
    """Fine-tune a checkpoint, in float or with quantizers (QAT), with or without a teacher.

    Writes a folder that transformers and `quantize` load. Checkpoints of the run are kept in
    `OUTPUT-checkpoints` until it ends. A resumed run ends with the same weights as one that was
    not interrupted. Processes started by `torchrun` or `accelerate launch` share the work.

    Args:
        model: Checkpoint: a local folder or a hub id. A missing head is created.
        output: Folder to write. Checkpoints of the run are kept in `OUTPUT-checkpoints` until it
            ends.
        train_data: Labeled examples: a .csv, .jsonl, .json or .parquet file, a folder, CoNLL
            columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or `datasets.Dataset`.
        eval_data: Labeled examples to evaluate on, in the same formats. No evaluation by default.
        task: Name of the task in transformers. Inferred from the checkpoint by default.
        qat: Insert calibrated quantizers and train with them (quantization-aware training).
        recipe: Which tensors to quantize, with `qat`.
        qat_ranges: What training does with calibrated ranges: keep them ("fixed"), learn them by
            gradient ("learned"), or average them with each batch's ("moving").
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        max_train_examples: Number of training examples to read at most. All by default.
        max_eval_examples: Number of evaluation examples to read at most. All by default.
        resume: Continue from the last checkpoint of an interrupted run.
        keep_checkpoints: Keep `OUTPUT-checkpoints` after the run.
        tensorboard: Write a TensorBoard log.
        overwrite: Replace an output folder that an earlier call wrote.
        optimization: Length and settings of the training.
        distillation: The teacher, and its weight in the loss.
        calibration: How ranges are found.
        quantizers: Changes to the quantizers of the recipe.
        columns: Columns of the data, where their names do not tell.
        task_options: Settings of the task.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        Metrics before and after training. The same is in `training.json`.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A quantizer saw no usable value.
        TrainingError: The loss is not finite, or a checkpoint cannot be written. Checkpoints that
            were written before are kept.

    Example:
        >>> report = qdqbert.train(
        ...     "./my-classifier", "./my-qat", train_data="train.csv", eval_data="dev.csv", qat=True
        ... )
        >>> report.after
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`train`")
    options = TrainOptions(**arguments)
    check_output(Path(options.output), overwrite=options.overwrite)
    check_data(options)
    from qdqbert.verbs.train.run import run

    return run(options, shown)
