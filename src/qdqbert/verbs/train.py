"""`qdqbert train`: fine-tunes a checkpoint for a task, in float or with quantizers in it (QAT)."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from qdqbert.artifact import TRAINING, check_output, write_json, writing
from qdqbert.checkpoint.load import Checkpoint, has_head
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.encoding import Encoded, make_batches
from qdqbert.errors import DataFileError, MissingExtraError, UserInputError
from qdqbert.evidence.record import TrainReport, json_ready
from qdqbert.graph.export import GraphBody
from qdqbert.insert.sited import sited_model
from qdqbert.models.calibrate import calibrate
from qdqbert.models.loading import load_model
from qdqbert.models.prepare import prepare
from qdqbert.models.state import fix_ranges_, learn_ranges_
from qdqbert.progress import Progress, Silent
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Dataset, fingerprint
from qdqbert.tasks.scores import scores_of
from qdqbert.tasks.task import Features, Labels, Metric, Task
from qdqbert.training.curves import plot_curves
from qdqbert.training.rows import TrainingRows, collator
from qdqbert.training.trainer import TaskTrainer, Teacher, last_checkpoint
from qdqbert.verbs.inference import EncodedExamples, TorchRunner, rows_of
from qdqbert.verbs.manifest import versions
from qdqbert.verbs.training_options import TrainOptions

CURVES = "curves.svg"
_EVALUATIONS = 4
_LOGGED = 50
_SETTINGS = "settings.json"
_EVENTS = "runs"  # transformers' folder of TensorBoard's files
_UNANNOTATED = ("fill-mask", "text-generation")
# Tasks whose labels are the texts themselves.


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Data:
    """Examples as a model is fed with them.

    Attributes:
        dataset: As it was read.
        features: All of it.
        rows: With labels, for the Trainer.
    """

    dataset: Dataset
    features: Features
    rows: TrainingRows | None


class _Run:
    """One call of `train`: the stages in order, each a method."""

    def __init__(self, options: TrainOptions, progress: Progress) -> None:
        self.options = options
        self.checkpoints = Path(f"{options.output}-checkpoints")
        self.notices: list[str] = []
        self.arguments = _arguments(options, self.checkpoints)
        self.is_main = self.arguments.process_index == 0
        self.progress: Progress = progress if self.is_main else Silent()

    def run(self) -> TrainReport:
        options = self.options
        check_output(Path(options.output), overwrite=options.overwrite)
        transformers.set_seed(options.seed)
        task, dataset, eval_dataset = self._read()
        # No loss of embeddings reaches an encoder's pooler.
        self.arguments.ddp_find_unused_parameters = task.is_embedding
        leader = self._load_teacher(task)
        with self.progress.stage("Loading the checkpoint"):
            checkpoint = load_model(
                options.model, task=task.name, new_head=_new_classes(task, dataset, leader)
            )
        _freeze_unused_(task, checkpoint)
        if sited_model(checkpoint.model).quantizers and options.qat:
            self.notices.append("The checkpoint has quantizers already; they are calibrated anew.")
        limit = min(
            options.max_length or task.max_length or checkpoint.max_length, checkpoint.max_length
        )
        data = self._encode(task, checkpoint, dataset, limit, is_training=True)
        held = None
        if eval_dataset is not None:
            held = self._encode(task, checkpoint, eval_dataset, limit, is_training=False)
        teacher = self._teacher(task, checkpoint, leader)
        if options.dropout == "off":
            set_dropout_(checkpoint.model, 0.0)
        device = self.arguments.device
        checkpoint.model.to(device)
        used: list[str] = []
        if options.qat:
            used = self._quantize(task, checkpoint, data, eval_dataset)
        body = GraphBody.of(checkpoint).to(device)
        scorer = _Scorer(task, checkpoint, body, held, options, self.progress)
        before = scorer.metrics() if held else []
        steps = self._set_steps(data)
        if options.keep_best:
            self.arguments.load_best_model_at_end = True
            self.arguments.metric_for_best_model = f"eval_{before[0].name}"
            self.arguments.greater_is_better = not before[0].is_error
        with self._checkpoint_folder():
            with self.progress.stage("Training", steps) as advance:
                trainer = TaskTrainer(
                    model=checkpoint.model,
                    args=self.arguments,
                    train_dataset=data.rows,
                    eval_dataset=None if held is None else held.features.examples,
                    data_collator=collator(data.features.encoded.padding),
                    processing_class=checkpoint.tokenizer,
                    outputs=body.output_names,
                    head=checkpoint.head,
                    is_embedder=task.is_embedding,
                    teacher=teacher,
                    score=scorer.metrics if held else None,
                    on_step=advance,
                )
                for unwanted in (transformers.ProgressCallback, transformers.PrinterCallback):
                    trainer.remove_callback(unwanted)
                resumed = self._resumed()
                trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
                # Others still write to their part of the last checkpoint.
                trainer.accelerator.wait_for_everyone()
            fix_ranges_(sited_model(checkpoint.model))
            after = scorer.metrics() if held else []
            report = self._report(task, dataset, eval_dataset, before, after, trainer, resumed)
            if self.is_main:
                self._write(checkpoint, report, trainer, used, limit)
        return report

    # What it is trained with

    def _read(self) -> tuple[Task, Dataset, Dataset | None]:
        options = self.options
        name = options.task or _task_of(options.model)
        task = TASKS.get(name)
        if task is None:
            raise UserInputError(f"`--task {name}` is unknown. Known: {', '.join(TASKS)}.")
        with self.progress.stage("Reading the data"):
            dataset = task.read(
                str(options.train_data),
                columns=options.columns,
                max_examples=options.max_train_examples,
            )
            held = options.eval_data and task.read(
                options.eval_data, columns=options.columns, max_examples=options.max_eval_examples
            )
        self.notices += dataset.notices
        if not held:
            return task, dataset, None
        self.notices += [f"Of the evaluation data: {each}" for each in held.notices]
        known = {fingerprint(example) for example in dataset.examples}
        shared = sum(fingerprint(example) in known for example in held.examples)
        if shared == len(held):
            raise UserInputError(
                f"All {shared} examples of `--eval-data {options.eval_data}` are in `--train-data "
                f"{options.train_data}` too. Hold examples out, or leave `--eval-data` away."
            )
        if shared:
            self.notices.append(
                f"{shared} of {len(held)} evaluation examples are trained on too: the metrics "
                "flatter."
            )
        return task, dataset, held

    def _encode(
        self,
        task: Task,
        checkpoint: Checkpoint,
        dataset: Dataset,
        limit: int,
        *,
        is_training: bool,
    ) -> _Data:
        what = "training" if is_training else "evaluation"
        with self.progress.stage(f"Tokenizing the {what} data"):
            features = task.encode(
                dataset.examples,
                checkpoint.tokenizer,
                input_names=checkpoint.input_names,
                max_length=limit,
                options=self.options.task_options,
            )
        self.notices += [f"Of the {what} data: {each}" for each in features.notices]
        if not is_training:
            task.labels(features, checkpoint.config.id2label)  # unknown ones fail here, not later
            return _Data(dataset=dataset, features=features, rows=None)
        labels = self._labels(task, features, checkpoint)
        rows = TrainingRows(features, labels, pairs=task.is_embedding)
        return _Data(dataset=dataset, features=features, rows=rows)

    def _labels(
        self, task: Task, features: Features, checkpoint: Checkpoint
    ) -> Sequence[Labels | None]:
        needs_none = self.options.distill_from and self.options.distillation.alpha == 1
        if task.is_embedding:
            return _pair_scores(features, needed=not needs_none)
        if needs_none and task.name not in _UNANNOTATED:
            return [{} for _ in features.encoded.rows]
        labels = task.labels(features, checkpoint.config.id2label)
        classes = {int(x) for each in labels if each for x in _flat(each.get("labels"))}
        if task.class_names(features.examples) is not None and checkpoint.config.num_labels > 1:
            empty = [
                name for index, name in checkpoint.config.id2label.items() if index not in classes
            ]
            if empty:
                self.notices.append(
                    f"The training data has no example of {len(empty)} of the model's "
                    f"{len(checkpoint.config.id2label)} classes, among them {empty[0]!r}: it will "
                    "unlearn them."
                )
        return labels

    def _load_teacher(self, task: Task) -> Checkpoint | None:
        name = self.options.distill_from
        if name is None:
            return None
        with self.progress.stage("Loading the teacher"):
            loaded = load_model(name, task=task.name)
        if sited_model(loaded.model).quantizers:
            raise UserInputError(
                f"`--distill-from {name}` has quantizers; expected a float checkpoint."
            )
        return loaded

    def _teacher(
        self, task: Task, checkpoint: Checkpoint, loaded: Checkpoint | None
    ) -> Teacher | None:
        if loaded is None:
            return None
        name = loaded.name
        ours, theirs = checkpoint.config, loaded.config
        if _has_classes(task) and dict(ours.id2label) != dict(theirs.id2label):
            raise UserInputError(
                f"`--distill-from {name}` has the classes {list(theirs.id2label.values())[:10]}, "
                f"the student {list(ours.id2label.values())[:10]}; expected the same in the same "
                "order."
            )
        if checkpoint.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise UserInputError(
                f"`--distill-from {name}` has another vocabulary than the student: it would read "
                "other words. Name a teacher with the same tokenizer."
            )
        if task.is_embedding and ours.hidden_size != theirs.hidden_size:
            raise UserInputError(
                f"`--distill-from {name}` makes embeddings of {theirs.hidden_size} numbers, the "
                f"student of {ours.hidden_size}; expected as many."
            )
        model = loaded.model.to(self.arguments.device)
        return Teacher(model, self.options.distillation)

    def _quantize(
        self, task: Task, checkpoint: Checkpoint, data: _Data, held: Dataset | None
    ) -> list[str]:
        """Puts calibrated quantizers in; returns fingerprints of what they were calibrated on."""
        options = self.options
        model: Any = checkpoint.model
        if not sited_model(model).quantizers:
            prepare(model, options.recipe, switches=options.switches)
        banned = {fingerprint(example) for example in held.examples} if held else set()
        rows = _rows_by_example(data.features, task)
        # Not those of the data set: some of its examples may have made no row.
        examples = data.features.examples
        usable = [
            index for index, example in enumerate(examples) if fingerprint(example) not in banned
        ]
        if not usable:
            raise UserInputError("No training example is left that is not in the evaluation data.")
        chosen = sorted(
            random.Random(options.seed).sample(
                usable, min(options.calibration_samples, len(usable))
            )
        )
        encoded = data.features.encoded
        picked = [row for index in chosen for row in rows[index]]
        sample = Encoded(
            rows=tuple(encoded.rows[row] for row in picked), padding=encoded.padding, truncated=0
        )
        batches = make_batches(sample, batch_size=options.batch_size)
        world, rank = self.arguments.world_size, self.arguments.process_index
        if len(batches) < world:
            raise UserInputError(
                f"`--calibration-samples {len(chosen)}` make {len(batches)} batches for {world} "
                "processes. Calibrate on more."
            )
        mine = batches[rank::world]
        tensors = [
            {name: torch.from_numpy(x) for name, x in batch.inputs.items()} for batch in mine
        ]
        with self.progress.stage("Calibrating", len(mine)) as advance:
            calibrate(model, tensors, advance=advance)
        learn_ranges_(sited_model(model), options.ranges)
        return sorted(fingerprint(examples[index]) for index in chosen)

    # How it is run

    def _set_steps(self, data: _Data) -> int:
        options, arguments = self.options, self.arguments
        assert data.rows is not None
        batch = options.batch_size * arguments.world_size * options.gradient_accumulation
        steps = max(1, math.ceil(len(data.rows) / batch * options.schedule("epochs")))
        arguments.max_steps = steps
        arguments.warmup_steps = int(options.warmup * steps)
        every = min(options.eval_steps or math.ceil(steps / _EVALUATIONS), steps)
        arguments.eval_steps = arguments.save_steps = every
        arguments.logging_steps = max(1, steps // _LOGGED)
        return int(steps * options.gradient_accumulation)

    @contextlib.contextmanager
    def _checkpoint_folder(self) -> Iterator[None]:
        """The folder of checkpoints, which goes once the trained model is written."""
        folder, settings = self.checkpoints, self._settings()
        stored = folder / _SETTINGS
        if self.options.resume:
            _check_resumable(folder, stored, settings)
        elif self.is_main:
            if folder.exists() and not stored.is_file():
                raise UserInputError(
                    f"{str(folder)!r}, where checkpoints would lie, exists and is no folder of "
                    "ours, so it will not be replaced. Pass another `--output`."
                )
            if last_checkpoint(folder) is not None and not self.options.overwrite:
                raise UserInputError(
                    f"{str(folder)!r} holds checkpoints of a run that did not end. Pass "
                    "`--resume` to go on from the last, or `--overwrite` to start anew."
                )
            shutil.rmtree(folder, ignore_errors=True)
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                raise UserInputError(
                    f"Output {str(folder)!r} cannot be written: {error.strerror}."
                ) from error
            write_json(stored, settings)
        try:
            yield
        except BaseException:
            if self.is_main and last_checkpoint(folder) is None:
                shutil.rmtree(folder, ignore_errors=True)  # nothing to go on from
            raise
        if self.is_main and not self.options.keep_checkpoints:
            shutil.rmtree(folder, ignore_errors=True)

    def _settings(self) -> dict[str, Any]:
        """What has to be the same for a run to go on."""
        settings = dataclasses.asdict(self.options)
        for name in ("resume", "overwrite", "keep_checkpoints", "tensorboard"):
            del settings[name]
        settings["processes"] = self.arguments.world_size
        plain: dict[str, Any] = json.loads(json.dumps(settings))
        return plain

    def _resumed(self) -> Path | None:
        return last_checkpoint(self.checkpoints) if self.options.resume else None

    # What it leaves

    def _report(
        self,
        task: Task,
        dataset: Dataset,
        held: Dataset | None,
        before: Sequence[Metric],
        after: Sequence[Metric],
        trainer: TaskTrainer,
        resumed: Path | None,
    ) -> TrainReport:
        return TrainReport(
            directory=self.options.output,
            checkpoint=self.options.model,
            task=task.name,
            training_examples=len(dataset),
            evaluation_examples=0 if held is None else len(held),
            quantizers=sum(
                not each._disabled for each in sited_model(trainer.model).quantizers.values()
            ),
            steps=trainer.state.global_step,
            resumed_at=None if resumed is None else int(resumed.name.split("-")[1]),
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
    """Evaluates a model as it stands, on held-out data."""

    def __init__(
        self,
        task: Task,
        checkpoint: Checkpoint,
        body: GraphBody,
        held: _Data | None,
        options: TrainOptions,
        progress: Progress,
    ) -> None:
        self._task, self._checkpoint, self._body = task, checkpoint, body
        self._options, self._progress = options, progress
        self._encoded: EncodedExamples | None = None
        if held is not None:
            batches = make_batches(held.features.encoded, batch_size=2 * options.batch_size)
            self._encoded = EncodedExamples(features=held.features, batches=tuple(batches))

    def metrics(self) -> list[Metric]:
        """The task's metrics."""
        assert self._encoded is not None
        training = self._body.training
        self._body.eval()
        runner = TorchRunner(self._body, self._checkpoint.input_names)
        rows = rows_of(self._task, runner, self._encoded)
        self._body.train(training)
        id2label: Mapping[int, str] = self._checkpoint.config.id2label
        return self._task.metrics(
            rows, self._encoded.features, id2label, self._options.task_options
        )


def set_dropout_(model: nn.Module, probability: float) -> None:
    """Sets the probability of all dropouts; the config keeps what it says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name in ("dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)


def _arguments(options: TrainOptions, folder: Path) -> Any:
    """Arguments for transformers; starts the group of processes where a launcher made several."""
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError(
            "`--tensorboard` needs tensorboard. Install it with: pip install 'qdqbert[tensorboard]'"
        )
    has_gpu = torch.cuda.is_available()
    is_shared = int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        return transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=options.batch_size,
            gradient_accumulation_steps=options.gradient_accumulation,
            learning_rate=options.schedule("learning_rate"),
            lr_scheduler_type=options.schedule("lr_scheduler"),
            weight_decay=options.weight_decay,
            seed=options.seed,
            data_seed=options.seed,
            max_steps=1,
            eval_strategy="steps" if options.eval_data else "no",
            save_strategy="steps",
            save_total_limit=2,
            load_best_model_at_end=False,
            report_to=["tensorboard"] if options.tensorboard else [],
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=not has_gpu,
            ddp_backend="gloo" if is_shared and not has_gpu else None,
            ddp_find_unused_parameters=False,
            dataloader_pin_memory=has_gpu,
            logging_nan_inf_filter=False,
        )
    except ImportError as error:
        raise MissingExtraError(
            "Training needs accelerate. Install it with: pip install 'qdqbert[train]'"
        ) from error


def _task_of(model: str) -> str:
    """The task that a checkpoint was trained for."""
    for name in TASKS:
        if name != "feature-extraction" and has_head(model, name):  # type: ignore[arg-type]
            return name
    raise UserInputError(
        f"What {model!r} is to be trained for is not known: it has no head. Pass `--task`, one of: "
        f"{', '.join(TASKS)}."
    )


def _check_resumable(folder: Path, stored: Path, settings: Mapping[str, Any]) -> None:
    if last_checkpoint(folder) is None or not stored.is_file():
        raise UserInputError(
            f"`--resume`: there is no checkpoint in {str(folder)!r}. Leave it out to start anew."
        )
    before = json.loads(stored.read_text(encoding="utf-8"))
    changed = sorted(name for name in settings if settings[name] != before.get(name))
    if changed:
        name = changed[0]
        raise UserInputError(
            f"`--resume`: `{name}` was {before.get(name)!r} when the run began and is "
            f"{settings[name]!r} now. Pass what it was, or start anew with `--overwrite`."
        )


def _has_classes(task: Task) -> bool:
    return task.class_names(()) is not None


def _new_classes(task: Task, dataset: Dataset, teacher: Checkpoint | None) -> list[str]:
    """Classes of a head that has to be made: the teacher's in their order, or the data's."""
    if not _has_classes(task):
        return []
    if teacher is not None:
        return list(teacher.config.id2label.values())
    return task.class_names(dataset.examples) or []


def _freeze_unused_(task: Task, checkpoint: Checkpoint) -> None:
    """Freezes what no loss reaches: processes that share the work wait for its gradients."""
    pooler = getattr(checkpoint.model, "pooler", None)
    if task.is_embedding and isinstance(pooler, nn.Module):
        pooler.requires_grad_(False)


def _pair_scores(features: Features, *, needed: bool) -> list[Labels | None]:
    """Scores of pairs from 0 to 1; none where only a teacher is followed."""
    examples = features.examples
    if not needed:
        return [{} for _ in examples]
    if any(example.text_pair is None for example in examples):
        raise DataFileError(
            "Embedders are trained on pairs of texts with a score; the data has one text a row. "
            "Name the second with `--text-pair-column`, or follow a teacher with `--distill-from`."
        )
    scores = scores_of(examples)
    low, high = min(0.0, *scores), max(1.0, *scores)
    return [{"scores": (score - low) / (high - low)} for score in scores]


def _rows_by_example(features: Features, task: Task) -> dict[int, list[int]]:
    """Which rows each example became."""
    count, total = len(features.examples), len(features.encoded.rows)
    if total == count:
        return {index: [index] for index in range(count)}
    if task.is_embedding:
        return {index: [index, index + count] for index in range(count)}
    rows: dict[int, list[int]] = {index: [] for index in range(count)}
    for row, place in enumerate(features.places):
        rows[place.example].append(row)
    return rows


def _finite(value: Any) -> Any:
    """`None` for numbers that JSON has no word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(value: Any) -> Sequence[Any]:
    if value is None:
        return []
    return value.tolist() if hasattr(value, "tolist") else [value]
