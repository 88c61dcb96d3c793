"""`qdqbert train`: fine-tunes a checkpoint for a task, in float or with quantizers in it (QAT)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from qdqbert.artifact import TRAINING, check_output, write_json, writing
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.encoding import make_batches
from qdqbert.errors import MissingExtraError
from qdqbert.evidence.reports import TrainReport, json_ready
from qdqbert.graph.export import GraphBody
from qdqbert.insert.sited import sited_model
from qdqbert.models.calibrate import calibrate
from qdqbert.models.loading import load_model
from qdqbert.models.prepare import prepare_with_options
from qdqbert.models.state import fix_ranges_, learn_ranges_
from qdqbert.progress import Progress, Silent
from qdqbert.tasks.task import Features, Metric, Task
from qdqbert.training.checkpoints import checkpoint_folder, step_of
from qdqbert.training.curves import plot_curves
from qdqbert.training.dataset import collator
from qdqbert.training.teacher import Teacher, check_teacher, load_teacher
from qdqbert.training.trainer import TaskTrainer
from qdqbert.verbs.inference import EncodedExamples, TorchRunner, predict
from qdqbert.verbs.manifest import versions
from qdqbert.verbs.training_data import (
    Examples,
    TrainingData,
    calibration_sample,
    choose_task,
    encode_data,
    new_classes,
    read_examples,
)
from qdqbert.verbs.training_options import TrainOptions, keep_best_, set_steps_, training_arguments

CURVES = "curves.svg"
_EVENTS = "runs"  # transformers' folder of TensorBoard's files


def train(
    model: str | Path,
    output: str | Path,
    *,
    train_data: str | Path,
    progress: Progress | None = None,
    **options: Any,
) -> TrainReport:
    """Trains a checkpoint for a task and writes the folder of the trained one.

    While it runs, checkpoints lie in `OUTPUT-checkpoints`; `resume=True` goes on from the last of
    them, and ends with the same weights as a run that was not stopped. Started by `torchrun` or
    `accelerate launch`, the processes share the work.

    Args:
        model: A local folder or a hub id; a head that it lacks is made.
        output: The folder to write.
        train_data: Labelled examples, in a format of the task.
        progress: Shows stages; silent if `None`.
        **options: The other fields of `TrainOptions`. `qat` puts quantizers in, calibrates them on
            training examples and trains with them; `distill_from` names a float checkpoint to
            follow.

    Raises:
        UserInputError: Something that was named cannot be used; nothing was written.
        CalibrationError: A quantizer saw no usable value.
        TrainingError: A loss is not finite, or there is no room for a checkpoint; those that were
            written before are kept.
    """
    chosen = TrainOptions(
        model=str(model), output=str(output), train_data=str(train_data), **options
    )
    return _Run(chosen, progress or Silent()).run()


class _Run:
    """One call of `train`: the stages in order."""

    def __init__(self, options: TrainOptions, progress: Progress) -> None:
        self.options = options
        self.checkpoints = Path(f"{options.output}-checkpoints")
        self.notices: list[str] = []
        self.arguments = training_arguments(options, self.checkpoints)
        self.is_main = self.arguments.process_index == 0
        self.progress: Progress = progress if self.is_main else Silent()

    def run(self) -> TrainReport:
        options = self.options
        check_output(Path(options.output), overwrite=options.overwrite)
        transformers.set_seed(options.seed)
        task = choose_task(options)
        examples = read_examples(task, options, progress=self.progress)
        self.notices += examples.notices
        leader = self._load_teacher(task)
        checkpoint = self._load(task, new_classes(task, examples.train, leader))
        data = encode_data(task, checkpoint, examples, options, progress=self.progress)
        self.notices += data.notices
        teacher = None
        if leader is not None:
            check_teacher(task, checkpoint, leader)
            teacher = Teacher(leader.model.to(self.arguments.device), options.distillation)
        used = self._quantize(task, checkpoint, data, examples) if options.qat else []
        scorer = _Scorer(task, checkpoint, data.held, options, device=self.arguments.device)
        before = scorer.metrics()
        if options.keep_best:
            keep_best_(self.arguments, before[0])
        with self._checkpoint_folder() as start:
            trainer = self._train(checkpoint, data, scorer, teacher, start)
            fix_ranges_(sited_model(checkpoint.model))
            report = self._report(task, examples, before, scorer.metrics(), trainer, start)
            if self.is_main:
                self._write(checkpoint, report, trainer, used, data.max_length)
        return report

    # What it is trained with

    def _load_teacher(self, task: Task) -> Checkpoint | None:
        if self.options.distill_from is None:
            return None
        with self.progress.stage("Loading the teacher"):
            return load_teacher(self.options.distill_from, task)

    def _load(self, task: Task, classes: Sequence[str]) -> Checkpoint:
        with self.progress.stage("Loading the checkpoint"):
            checkpoint = load_model(self.options.model, task=task.name, new_head=classes)
        _freeze_unused_(task, checkpoint)
        if self.options.dropout == "off":
            set_dropout_(checkpoint.model, 0.0)
        checkpoint.model.to(self.arguments.device)
        if sited_model(checkpoint.model).quantizers and self.options.qat:
            self.notices.append("The checkpoint has quantizers already; they are calibrated anew.")
        return checkpoint

    def _quantize(
        self, task: Task, checkpoint: Checkpoint, data: TrainingData, examples: Examples
    ) -> list[str]:
        """Puts calibrated quantizers in; returns fingerprints of what they were calibrated on."""
        options = self.options
        model: Any = checkpoint.model
        if not sited_model(model).quantizers:
            prepare_with_options(model, options.recipe, options.quantizer_options)
        sample = calibration_sample(
            task,
            data.features,
            examples.held,
            options,
            processes=self.arguments.world_size,
            process=self.arguments.process_index,
        )
        with self.progress.stage("Calibrating", len(sample.batches)) as advance:
            calibrate(model, sample.batches, advance=advance)
        learn_ranges_(sited_model(model), options.ranges)
        return sample.fingerprints

    # How it is run

    def _checkpoint_folder(self) -> contextlib.AbstractContextManager[Path | None]:
        options = self.options
        return checkpoint_folder(
            self.checkpoints,
            {**options.settings(), "processes": self.arguments.world_size},
            resume=options.resume,
            overwrite=options.overwrite,
            keep=options.keep_checkpoints,
            is_main=self.is_main,
        )

    def _train(
        self,
        checkpoint: Checkpoint,
        data: TrainingData,
        scorer: _Scorer,
        teacher: Teacher | None,
        start: Path | None,
    ) -> TaskTrainer:
        batches = set_steps_(self.arguments, self.options, items=len(data.rows))
        with self.progress.stage("Training", batches) as advance:
            trainer = TaskTrainer(
                model=checkpoint.model,
                args=self.arguments,
                train_dataset=data.rows,
                eval_dataset=None if data.held is None else data.held.examples,
                data_collator=collator(data.features.encoded.padding),
                processing_class=checkpoint.tokenizer,
                outputs=scorer.body.output_names,
                head=checkpoint.head,
                is_embedder=scorer.task.is_embedding,
                teacher=teacher,
                score=None if data.held is None else scorer.metrics,
                on_step=advance,
            )
            for unwanted in (transformers.ProgressCallback, transformers.PrinterCallback):
                trainer.remove_callback(unwanted)
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
            # Others still write to their part of the last checkpoint.
            trainer.accelerator.wait_for_everyone()
        return trainer

    # What it leaves

    def _report(
        self,
        task: Task,
        examples: Examples,
        before: Sequence[Metric],
        after: Sequence[Metric],
        trainer: TaskTrainer,
        start: Path | None,
    ) -> TrainReport:
        quantizers = sited_model(trainer.model).quantizers.values()
        return TrainReport(
            directory=self.options.output,
            checkpoint=self.options.model,
            task=task.name,
            training_examples=len(examples.train),
            evaluation_examples=0 if examples.held is None else len(examples.held),
            quantizers=sum(each.is_enabled for each in quantizers),
            steps=trainer.state.global_step,
            resumed_at=None if start is None else step_of(start),
            before=tuple(before),
            after=tuple(after),
            notices=tuple(dict.fromkeys(self.notices)),
        )

    def _write(
        self,
        checkpoint: Checkpoint,
        report: TrainReport,
        trainer: TaskTrainer,
        used: Sequence[str],
        limit: int,
    ) -> None:
        model: Any = checkpoint.model
        with writing(Path(self.options.output), overwrite=self.options.overwrite) as folder:
            model.save_pretrained(folder)
            checkpoint.tokenizer.save_pretrained(folder)
            if checkpoint.head is not None:
                write_sentence_head(checkpoint.head, folder, hidden=checkpoint.config.hidden_size)
            if (self.checkpoints / _EVENTS).is_dir():
                shutil.copytree(self.checkpoints / _EVENTS, folder / _EVENTS)
            with contextlib.suppress(MissingExtraError):
                plot_curves(trainer.state.log_history, folder / CURVES)
            content = {
                "format": "qdqbert-training/1",
                "command": self.options.command(),
                "max_length": limit,
                "task_options": dataclasses.asdict(self.options.task_options),
                "calibration": {"fingerprints": list(used)},
                "report": json_ready(report),
                "history": [
                    {name: _finite(value) for name, value in entry.items()}
                    for entry in trainer.state.log_history
                ],
                "versions": versions(),
            }
            write_json(folder / TRAINING, content)


class _Scorer:
    """Evaluates a model as it stands, on held-out data.

    Attributes:
        task: What the model is for.
        body: The model and its pooling.
    """

    def __init__(
        self,
        task: Task,
        checkpoint: Checkpoint,
        held: Features | None,
        options: TrainOptions,
        *,
        device: torch.device,
    ) -> None:
        self.task, self.body = task, GraphBody.of(checkpoint).to(device)
        self._checkpoint, self._options = checkpoint, options
        self._encoded: EncodedExamples | None = None
        if held is not None:
            batches = make_batches(held.encoded, batch_size=2 * options.batch_size)
            self._encoded = EncodedExamples(features=held, batches=tuple(batches))

    def metrics(self) -> list[Metric]:
        """The task's metrics; none without data."""
        if self._encoded is None:
            return []
        training = self.body.training
        self.body.eval()
        runner = TorchRunner(self.body, self._checkpoint.input_names)
        rows = predict(self.task, runner, self._encoded)
        self.body.train(training)
        id2label: Mapping[int, str] = self._checkpoint.config.id2label
        options = self._options.task_options
        return self.task.metrics(rows, self._encoded.features, id2label, options)


def set_dropout_(model: nn.Module, probability: float) -> None:
    """Sets the probability of all dropouts; the config keeps what it says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name in ("dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)


def _freeze_unused_(task: Task, checkpoint: Checkpoint) -> None:
    """Freezes what no loss reaches: processes that share the work wait for its gradients."""
    pooler = getattr(checkpoint.model, "pooler", None)
    if task.is_embedding and isinstance(pooler, nn.Module):
        pooler.requires_grad_(False)


def _finite(value: Any) -> Any:
    """`None` for numbers that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
