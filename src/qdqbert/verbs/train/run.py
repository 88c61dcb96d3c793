"""Train a checkpoint, in float or with quantizers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import MissingExtraError, UserInputError, naming
from qdqbert.common.files import json_values, write_json
from qdqbert.common.options.declared import command_line
from qdqbert.common.progress import Progress, Silent
from qdqbert.common.storage import place_of
from qdqbert.data.rows.lines import counted
from qdqbert.encoders.checkpoint.calls import finder_of
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.checkpoint.tokenizer import write_tokenizer
from qdqbert.encoders.families import quantized_family
from qdqbert.encoders.of_checkpoint import reader_of_head
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.evidence.reporting.comparison import metric_text
from qdqbert.evidence.reporting.report import json_ready
from qdqbert.evidence.reporting.train import TrainReport
from qdqbert.pipeline.settings import quantizer_options_of
from qdqbert.pipeline.versions import versions
from qdqbert.quantization.numerics.threads import usable_torch_threads
from qdqbert.runtime.artifact import TRAINING, TRAINING_FORMAT, read_training, writing
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION
from qdqbert.tasks.registry import task_for
from qdqbert.tasks.regression import REGRESSION
from qdqbert.tasks.task import Metric, Task
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION
from qdqbert.training.models.calibrate import calibrate, count_passes
from qdqbert.training.models.prepare import prepare_with_options
from qdqbert.training.models.quantized import load_model
from qdqbert.training.models.state import fix_ranges_, learn_ranges_
from qdqbert.training.trainer.checkpoints import (
    check_folder,
    checkpoint_folder,
    checkpoints_of,
    step_of,
)
from qdqbert.training.trainer.curves import plot_curves
from qdqbert.training.trainer.dataset import collator
from qdqbert.training.trainer.losses import refuse_after_pooling
from qdqbert.training.trainer.teacher import Teacher, check_teacher, load_teacher
from qdqbert.training.trainer.trainer import TaskTrainer
from qdqbert.verbs.train.arguments import keep_best_, set_steps_, training_arguments
from qdqbert.verbs.train.data import (
    Examples,
    TrainingData,
    calibration_sample,
    choose_task,
    encode_data,
    new_classes,
    read_examples,
    task_of_labels,
)
from qdqbert.verbs.train.options import TrainOptions
from qdqbert.verbs.train.scorer import Scorer

CURVES = "curves.svg"
# A run with fewer steps than this gets a notice.
_FEWEST_STEPS = 10
# A loss below this is not worth a notice, whatever it was before.
_SMALL_LOSS = 1e-3
# transformers' name of the folder of TensorBoard's files.
_EVENTS = "runs"


@usable_torch_threads()
def run(options: TrainOptions, progress: Progress) -> TrainReport:
    """Train a model and write it."""
    folder = checkpoints_of(options.output)
    arguments = training_arguments(options, folder)
    is_main = arguments.process_index == 0
    progress = progress if is_main else Silent()
    settings = {**options.settings(), "processes": arguments.world_size}
    if is_main or options.resume:
        check_folder(folder, settings, resume=options.resume, overwrite=options.overwrite)
    transformers.set_seed(options.optimization.seed)
    task = choose_task(options)
    examples = read_examples(task, options, progress=progress)
    teacher_checkpoint = None
    if options.distillation.teacher is not None:
        with progress.stage("Loading the teacher"), naming("distill_from"):
            teacher_checkpoint = load_teacher(os.fspath(options.distillation.teacher), task)
    task = task_of_labels(task, examples.train, options, teacher_checkpoint)
    checkpoint = load_student(
        options, task, new_classes(task, examples.train, options, teacher_checkpoint), progress
    )
    # A new head may have one output.
    task = task_for(task.name, checkpoint.config)
    checkpoint.model.to(arguments.device)
    trained = read_training(Path(options.model))
    data = encode_data(task, checkpoint, examples, options, trained=trained, progress=progress)
    teacher = _make_teacher(options, task, checkpoint, teacher_checkpoint, arguments)
    notices = [*checkpoint.notices, *_left_out(checkpoint), *examples.notices, *data.notices]
    calibrated_on: list[str] = []
    if options.qat:
        if sited_model(checkpoint.model).quantizers:
            notices.append("The checkpoint already has quantizers. They are calibrated again.")
        calibrated_on = insert_quantizers(
            options, task, checkpoint, data, examples, arguments, progress
        )
    scorer = Scorer(
        task,
        checkpoint,
        data.held,
        data.task_options,
        batch_size=2 * options.optimization.batch_size,
        device=arguments.device,
    )
    before = scorer.metrics()
    if options.optimization.keep_best:
        keep_best_(arguments, before[0])
    with checkpoint_folder(
        folder,
        settings,
        resume=options.resume,
        overwrite=options.overwrite,
        keep=options.keep_checkpoints,
        is_main=is_main,
    ) as start:
        trainer = fit(
            options, arguments, checkpoint, data, scorer, teacher, before, start, progress
        )
        fix_ranges_(sited_model(checkpoint.model))
        report = make_report(
            options, task, examples, trainer, start, before, scorer.metrics(), notices
        )
        if is_main:
            history = trainer.state.log_history
            write_folder(options, checkpoint, report, history, calibrated_on, data, folder)
    return report


def _left_out(checkpoint: Checkpoint) -> list[str]:
    """Return a notice about layers of the checkpoint that the trained one will not have."""
    files = () if checkpoint.head is None else checkpoint.head.weight_files
    if not files:
        return []
    return [
        f"{' and '.join(files)} of {checkpoint.name!r} are not trained, and fit other states: the "
        "trained checkpoint has no vectors of these layers."
    ]


def load_student(
    options: TrainOptions, task: Task, classes: Sequence[str], progress: Progress
) -> Checkpoint:
    """Load the checkpoint to train, with a new head if it has none.

    Raises:
        CheckpointError: It cannot be loaded.
        UserInputError: It has quantizers, and an option configures new ones, or no engine runs
            models of its family for the task.
    """
    with progress.stage("Loading the checkpoint"), naming("model"):
        checkpoint = load_model(
            os.fspath(options.model),
            task=task.name,
            new_head=classes,
            pooling=options.task_options.pooling,
            adapter=options.task_options.adapter,
        )
    if TASK_KINDS[checkpoint.model_task].has_head:
        reader_of_head(quantized_family(checkpoint.config.model_type), checkpoint.model_task)
    refuse_after_pooling(checkpoint, "model")
    if task is REGRESSION or (task is TEXT_CLASSIFICATION and list(classes) == ["score"]):
        # Its output is the score itself, not a probability.
        checkpoint.config.problem_type = "regression"
    if task is MULTI_LABEL_CLASSIFICATION:
        # transformers then computes the loss of independent classes.
        checkpoint.config.problem_type = "multi_label_classification"
    if sited_model(checkpoint.model).quantizers:
        for name in options.options_of_new_quantizers():
            raise UserInputError(
                f"`{name}` configures new quantizers, and checkpoint {options.model!r} already has "
                f"quantizers. Leave `{name}` out, or pass the float checkpoint as `model`.",
                argument=name,
            )
    _freeze_unused_(task, checkpoint)
    if options.optimization.dropout == "off":
        set_dropout_(checkpoint.model, 0.0)
    return checkpoint


def insert_quantizers(
    options: TrainOptions,
    task: Task,
    checkpoint: Checkpoint,
    data: TrainingData,
    examples: Examples,
    arguments: Any,
    progress: Progress,
) -> list[str]:
    """Insert calibrated quantizers, in place.

    Returns:
        Fingerprints of the examples that they were calibrated on.
    """
    model: Any = checkpoint.model
    if not sited_model(model).quantizers:
        # The paper and the SQuAD example use percentile 99.99, which is as good as mse on some
        # texts and loses 10 points on others (`benchmarks/calibrators.py`).
        quantizer_options = quantizer_options_of(
            options.quantizers, options.calibration, usual="mse"
        )
        prepare_with_options(model, options.recipe, quantizer_options)
    sample = calibration_sample(
        task,
        data.features,
        options,
        excluded=examples.evaluated,
        processes=arguments.world_size,
        process=arguments.process_index,
    )
    total = count_passes(model) * len(sample.batches)
    with progress.stage("Calibrating", total) as advance:
        calibrate(model, sample.batches, advance=advance)
    learn_ranges_(sited_model(model), options.qat_ranges)
    return sample.fingerprints


def fit(
    options: TrainOptions,
    arguments: Any,
    checkpoint: Checkpoint,
    data: TrainingData,
    scorer: Scorer,
    teacher: Teacher | None,
    before: Sequence[Metric],
    start: Path | None,
    progress: Progress,
) -> TaskTrainer:
    """Train the model, in place, and return the trainer."""
    batches = set_steps_(arguments, options, items=len(data.rows))
    with progress.stage("Training", batches) as advance:
        trainer = TaskTrainer(
            model=checkpoint.model,
            args=arguments,
            train_dataset=data.rows,
            eval_dataset=None if data.held is None else data.held.examples,
            data_collator=collator(data.features.encoded.padding),
            processing_class=checkpoint.tokenizer,
            outputs=scorer.body.output_names,
            head=checkpoint.head if isinstance(checkpoint.head, SentenceHead) else None,
            is_embedder=scorer.task.is_embedding,
            objective=data.objective,
            teacher=teacher,
            score=None if data.held is None else scorer.metrics,
            start=before[0] if options.optimization.keep_best else None,
            on_batch=advance,
        )
        for unwanted in (transformers.ProgressCallback, transformers.PrinterCallback):
            trainer.remove_callback(unwanted)
        trainer.train(resume_from_checkpoint=None if start is None else str(start))
        # Other processes may still write their part of the last checkpoint.
        trainer.accelerator.wait_for_everyone()
    return trainer


def make_report(
    options: TrainOptions,
    task: Task,
    examples: Examples,
    trainer: TaskTrainer,
    start: Path | None,
    before: Sequence[Metric],
    after: Sequence[Metric],
    notices: Sequence[str],
) -> TrainReport:
    """Return the report of a run that has ended."""
    quantizers = sited_model(trainer.model).quantizers.values()
    steps = trainer.state.global_step
    notices = [*notices, *_what_went_wrong(options, trainer.state, before, after)]
    if steps < _FEWEST_STEPS:
        epochs = options.schedule("epochs")
        notices.append(
            f"Trained for {counted(steps, 'step')} only, with `epochs={epochs:g}`. That hardly "
            "changes the weights. Pass more `train_data`, or raise `epochs`."
        )
    return TrainReport(
        directory=options.output,
        checkpoint=str(options.model),
        task=task.name,
        training_examples=len(examples.train),
        evaluation_examples=0 if examples.held is None else len(examples.held),
        quantizers=sum(each.is_enabled for each in quantizers),
        steps=steps,
        resumed_at=None if start is None else step_of(start),
        before=tuple(before),
        after=tuple(after),
        notices=tuple(dict.fromkeys(notices)),
    )


def _what_went_wrong(
    options: TrainOptions, state: Any, before: Sequence[Metric], after: Sequence[Metric]
) -> list[str]:
    """Return notices on a loss that rose, and on a model that is not better than before."""
    notices = []
    lower = f"Lower `learning_rate`, which was {options.schedule('learning_rate'):g}"
    losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
    part = max(1, len(losses) // 10)
    first, last = (sum(each) / part for each in (losses[:part], losses[-part:]))
    peak = max(losses, default=0.0)
    # Without a second condition, a run that ends at a constant answer would not be found.
    if last > _SMALL_LOSS and (last > 2 * first or (peak > 10 * first and last > 0.9 * first)):
        notices.append(
            f"The loss rose from {first:.3g} to {last:.3g}, and to {peak:.3g} in between: the "
            f"training diverged. {lower}."
        )
    if not after:
        return notices
    old, new = before[0], after[0]
    if options.optimization.keep_best and state.best_global_step == 0:
        notices.append(
            f"No model of this run was better than the one before training, whose {old.name} is "
            f"{metric_text(old)}: that one was written. {lower}, or pass more `train_data`."
        )
    elif new.value > old.value if new.is_error else new.value < old.value:
        notices.append(
            f"The model is worse than before training: its {new.name} was {metric_text(old)} and "
            f"is {metric_text(new)}. {lower}, or pass `keep_best=True`."
        )
    return notices


def write_folder(
    options: TrainOptions,
    checkpoint: Checkpoint,
    report: TrainReport,
    history: Sequence[dict[str, Any]],
    calibrated_on: Sequence[str],
    data: TrainingData,
    checkpoints: Path,
) -> None:
    """Write the trained model and how it was trained."""
    model: Any = checkpoint.model
    with writing(place_of(options.output), overwrite=options.overwrite) as folder:
        model.save_pretrained(folder)
        write_tokenizer(checkpoint.tokenizer, folder, max_length=checkpoint.max_length)
        for each in filter(None, (checkpoint.head, checkpoint.cross_encoder)):
            hidden = checkpoint.config.hidden_size
            each.write(folder, hidden=hidden, find=finder_of(checkpoint.name))
        if (checkpoints / _EVENTS).is_dir():
            shutil.copytree(checkpoints / _EVENTS, folder / _EVENTS)
        with contextlib.suppress(MissingExtraError):
            plot_curves(history, folder / CURVES)
        content = {
            "format": TRAINING_FORMAT,
            # A finished run is repeated from its start, even if it was resumed.
            "command": command_line("train", dataclasses.replace(options, resume=False)),
            "max_length": data.max_length,
            "task_options": dataclasses.asdict(data.task_options),
            "calibration": {"fingerprints": list(calibrated_on)},
            "training": {"fingerprints": list(data.fingerprints)},
            "report": json_ready(report),
            "history": json_values(list(history)),
            "versions": versions(),
        }
        write_json(folder / TRAINING, content)


def set_dropout_(model: nn.Module, probability: float) -> None:
    """Set the probability of all dropout modules. The config keeps its own."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name in ("dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)


def _make_teacher(
    options: TrainOptions,
    task: Task,
    student: Checkpoint,
    loaded: Checkpoint | None,
    arguments: Any,
) -> Teacher | None:
    if loaded is None:
        return None
    check_teacher(task, student, loaded)
    return Teacher(loaded.model.to(arguments.device), options.distillation)


def _freeze_unused_(task: Task, checkpoint: Checkpoint) -> None:
    """Freeze parameters without a gradient, which processes that share the work would wait for."""
    pooler = getattr(checkpoint.model, "pooler", None)
    if task.is_embedding and isinstance(pooler, nn.Module):
        pooler.requires_grad_(False)
