"""The data of a training: examples -> features -> a labelled data set, and a calibration sample.

What a user should know about the data is returned as notices.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qdqbert.common.errors import DataFileError, UserInputError, naming
from qdqbert.common.progress import Progress
from qdqbert.data.rows.columns import is_number
from qdqbert.data.rows.data import Dataset, fingerprint, labels_place, read_data
from qdqbert.data.rows.lines import counted
from qdqbert.data.tokenizing.encoding import Encoded, make_batches
from qdqbert.encoders.checkpoint.cross_encoder import activation_of
from qdqbert.encoders.checkpoint.description import infer_task, read_config
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.encoders.checkpoint.own_layers import package_of
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskSettings, head_of, tasks_of
from qdqbert.pipeline.settings import input_length, task_options_of
from qdqbert.runtime.artifact import read_training, rows_of
from qdqbert.tasks.feature_extraction import ContrastExample
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION
from qdqbert.tasks.registry import TASKS, task_for
from qdqbert.tasks.regression import ONE_SCORE
from qdqbert.tasks.reranking import RERANKING
from qdqbert.tasks.scores import scaled_scores, score_of
from qdqbert.tasks.task import Features, Labels, Task, Tokenization
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION
from qdqbert.training.trainer.dataset import TrainingDataset
from qdqbert.training.trainer.losses import Objective
from qdqbert.training.trainer.trainer import SCORES
from qdqbert.verbs.train.options import TrainOptions

# What is said of examples if the model was trained before.
_BEFORE = " of this run or of an earlier one"
# A file of 25 MB.
_MOST_FINGERPRINTS = 1_000_000


def choose_task(options: TrainOptions) -> Task:
    """Return the requested task, or the one that the checkpoint has a head for.

    Raises:
        UserInputError: None is requested, and the checkpoint has no head; or its models are not
            trained here.
    """
    with naming("model"):
        config = read_config(os.fspath(options.model))
        named = options.task or infer_task(os.fspath(options.model))
    if named is None:
        raise UserInputError(
            f"Checkpoint {options.model!r} has no head, so its task cannot be inferred. Pass "
            f"`task`, one of: {', '.join(TASKS)}.",
            argument="task",
        )
    task = task_for(named, config)
    if task.labels is None:
        spans = TASK_KINDS[task.name].vectors == "spans"
        library = "gliner" if spans else "sentence-transformers"
        library = package_of(vars(config)) or library
        raise UserInputError(
            f"`train` does not train models for the task {task.name!r}. Train it with {library}, "
            "and quantize the result.",
            argument="model" if options.task is None else "task",
        )
    return task


def task_of_labels(
    task: Task, dataset: Dataset, options: TrainOptions, teacher: Checkpoint | None
) -> Task:
    """Return the task of a new classifier: multi-label, if its teacher or its data are."""
    config = read_config(os.fspath(options.model))
    if task is not TEXT_CLASSIFICATION or task.name in tasks_of(config):
        return task
    if teacher is not None:
        return task_for(task.name, teacher.config)
    has_lists = any((example.label or "").startswith("[") for example in dataset.examples)
    return MULTI_LABEL_CLASSIFICATION if has_lists else task


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """The data before tokenization.

    Attributes:
        train: Training data.
        held: Evaluation data, if there are any; some of the examples, not all, can be in `train`.
        evaluated: Fingerprints of the evaluation data.
        notices: Sentences for the user about both.
    """

    train: Dataset
    held: Dataset | None
    evaluated: frozenset[str] = frozenset()
    notices: tuple[str, ...]


def read_examples(task: Task, options: TrainOptions, *, progress: Progress) -> Examples:
    """Read training and evaluation data.

    Raises:
        DataFileError: The task cannot read them.
        UserInputError: All evaluation data are in the training data.
    """
    held = None
    with progress.stage("Reading the data"):
        with naming("train_data"):
            train = read_data(
                task.read, options.train_data, options.columns, options.max_train_examples
            )
        if options.eval_data:
            with naming("eval_data"):
                held = read_data(
                    task.read, options.eval_data, options.columns, options.max_eval_examples
                )
    if held is None:
        return Examples(train=train, held=None, notices=train.notices)
    notices = [*train.notices, *(f"Evaluation data: {each}" for each in held.notices)]
    earlier = rows_of(read_training(Path(options.model)), "training")
    known = {*map(fingerprint, train.examples), *earlier}
    evaluated = [fingerprint(example) for example in held.examples]
    shared = sum(each in known for each in evaluated)
    if shared == len(held):
        raise UserInputError(
            f"All examples of `eval_data={options.eval_data!r}` ({shared}) are also in "
            f"`train_data={options.train_data!r}`{_BEFORE if earlier else ''}. Use other examples, "
            "or leave `eval_data` out.",
            argument="eval_data",
        )
    if shared:
        notices.append(
            f"{shared} of {counted(len(held), 'evaluation example')} are also in the training "
            f"data{_BEFORE if earlier else ''}: the metrics are inflated."
        )
    return Examples(train=train, held=held, evaluated=frozenset(evaluated), notices=tuple(notices))


def new_classes(
    task: Task, dataset: Dataset, options: TrainOptions, teacher: Checkpoint | None
) -> list[str]:
    """Return the classes of a new head: the teacher's in their order, or the data's.

    There are none if the checkpoint has a head, or if heads of the task have no classes.
    """
    has_head = head_of(task.name) in tasks_of(read_config(os.fspath(options.model)))
    if has_head or not TASK_KINDS[task.name].has_classes:
        return []
    if teacher is not None:
        return list(teacher.config.id2label.values())
    if task.class_names is None:
        # The config says how many numbers there are.
        return []
    with naming("train_data"):
        return task.class_names(task.labeled(dataset))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The data after tokenization.

    Attributes:
        features: Features of the training examples.
        rows: The same with labels, for the Trainer.
        objective: What the labels are.
        held: Features of the evaluation examples, if there are any.
        task_options: Settings of the task.
        max_length: Longest feature in tokens.
        fingerprints: Of the examples that the model is trained on, and was trained on before.
        notices: Sentences for the user.
    """

    features: Features
    rows: TrainingDataset
    objective: Objective
    held: Features | None
    task_options: TaskSettings
    max_length: int
    fingerprints: tuple[str, ...]
    notices: tuple[str, ...]


def encode_data(
    task: Task,
    checkpoint: Checkpoint,
    examples: Examples,
    options: TrainOptions,
    *,
    trained: Mapping[str, Any],
    progress: Progress,
) -> TrainingData:
    """Check the labels, and tokenize the examples for a checkpoint.

    `trained` is the `training.json` of the checkpoint; empty without one.
    """
    uses_labels = _uses_labels(task, options)
    id2label = checkpoint.config.id2label
    objective = _objective(task, checkpoint, examples.train)
    has_labels = uses_labels and objective != "in-batch"
    examples, read = _with_read_labels(task, examples, id2label, uses_labels=has_labels)
    max_length, notices = input_length(
        options.max_length, trained.get("max_length") or task.max_length, checkpoint.max_length
    )
    notices += read
    task_options = task_options_of(
        task, options.task_options, trained.get("task_options", {}), seed=options.optimization.seed
    )
    how = Tokenization(
        tokenizer=runtime_tokenizer(checkpoint.tokenizer, checkpoint.pair_template),
        input_names=checkpoint.input_names,
        max_length=max_length,
        settings=task_options,
    )
    with progress.stage("Tokenizing the training data"):
        features = task.encode(examples.train.examples, how)
    labels = _training_labels(task, features, id2label, uses_labels=has_labels)
    notices += [f"Training data: {each}" for each in features.notices]
    if has_labels and task.class_names is not None and checkpoint.config.num_labels > 1:
        notices += _absent_classes(labels, id2label)
    elif has_labels and not TASK_KINDS[task.name].has_choices:
        _check_labels_differ(labels, examples.train)
    if has_labels and objective == "relevance":
        notices += _scale_notice(examples.train)
        labels = [{SCORES: score} for score in scaled_scores(features.examples)]
    elif uses_labels and objective == "in-batch":
        notices += _in_batch_notices(examples.train, options.optimization.batch_size)
    held = None
    if examples.held is not None:
        with progress.stage("Tokenizing the evaluation data"):
            held = task.encode(examples.held.examples, how)
        notices += [f"Evaluation data: {each}" for each in held.notices]
    seen = {*map(fingerprint, features.examples), *rows_of(trained, "training")}
    if len(seen) > _MOST_FINGERPRINTS:
        notices.append(
            f"training.json gets the fingerprints of {_MOST_FINGERPRINTS:,} of {len(seen):,} "
            "training examples. `evaluate` and `quantize` know only these again."
        )
    return TrainingData(
        features=features,
        rows=TrainingDataset(features, labels, together=task.is_embedding),
        objective=objective,
        held=held,
        task_options=task_options,
        max_length=max_length,
        fingerprints=tuple(sorted(seen)[:_MOST_FINGERPRINTS]),
        notices=tuple(notices),
    )


def _objective(task: Task, checkpoint: Checkpoint, train: Dataset) -> Objective:
    """Return what a model learns from the training data."""
    config, first = checkpoint.config, train.examples[0]
    if task.is_embedding:
        is_scored = train.columns.label is not None and not isinstance(first, ContrastExample)
        return "similarity" if is_scored or first.text_pair is None else "in-batch"
    if task not in (ONE_SCORE, RERANKING) or getattr(config, "problem_type", None) == "regression":
        return "labels"
    if all(is_number(each.label) and 0 <= float(each.label) <= 1 for each in train.examples):
        return "relevance"
    # Other scores can be learned as they are, unless the model's are probabilities.
    files = checkpoint.cross_encoder
    activation = activation_of(config.to_dict(), files.settings if files else ModelSettings(), 1)
    return "relevance" if task is RERANKING and activation == "sigmoid" else "labels"


def _scale_notice(train: Dataset) -> list[str]:
    scores = [score_of(example) for example in train.examples]
    if min(scores) >= 0 and max(scores) <= 1:
        return []
    return [
        f"Scores of {labels_place(train)} are from {min(scores):g} to {max(scores):g}. They are "
        "scaled to 0 to 1, as the model's are probabilities."
    ]


def _in_batch_notices(train: Dataset, batch_size: int) -> list[str]:
    """Return notices on pairs without scores."""
    texts = [example.content for example in train.examples]
    if len(texts[0]) == 2 and min(batch_size, len(texts)) < 2:
        raise UserInputError(
            f"`batch_size={batch_size}` with {counted(len(texts), 'pair')}: the second texts of "
            "the other pairs of a batch are the wrong answers, so there must be others. Raise it, "
            "pass more pairs, or pairs with a score.",
            argument="batch_size",
        )
    negatives = len(texts[0]) - 2
    kinds = f"pairs with {counted(negatives, 'negative')}" if negatives else "pairs without scores"
    notices = [
        f"Trained on {kinds}: a first text has to find its second one among all texts of a batch."
    ]
    if train.columns.label is not None:
        notices.append(f"The scores in column {train.columns.label!r} are not used.")
    seen = collections.Counter(each[1] for each in texts)
    repeated = sum(count for count in seen.values() if count > 1)
    if repeated:
        notices.append(
            f"{repeated} of {counted(len(texts), 'pair')} have the second text of another pair. In "
            "one batch, they are wrong answers to each other."
        )
    return notices


def _with_read_labels(
    task: Task, examples: Examples, id2label: Mapping[int, str], *, uses_labels: bool
) -> tuple[Examples, list[str]]:
    """Return the data with labels that can be scored, and what to say about how they are read."""
    notices = []
    train, held = examples.train, examples.held
    if uses_labels:
        with naming("train_data"):
            train = task.read_labels(train, id2label)
        notices += [f"Training data: {each}" for each in _added(train, examples.train)]
    if held is not None:
        with naming("eval_data"):
            held = task.read_labels(held, id2label)
            task.check_metrics(held, id2label)
        notices += [f"Evaluation data: {each}" for each in _added(held, examples.held)]
    return dataclasses.replace(examples, train=train, held=held), notices


def _added(dataset: Dataset, before: Dataset | None) -> tuple[str, ...]:
    return dataset.notices if before is None else dataset.notices[len(before.notices) :]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The data of a calibration.

    Attributes:
        batches: Arguments of the model; with several processes, the batches of this one.
        fingerprints: `data.rows.data.fingerprint` of each example in the batches of all processes.
    """

    batches: list[dict[str, Tensor]]
    fingerprints: list[str]


def calibration_sample(
    task: Task,
    features: Features,
    options: TrainOptions,
    *,
    excluded: Collection[str] = (),
    processes: int = 1,
    process: int = 0,
) -> Sample:
    """Draw training examples to calibrate on.

    Examples whose fingerprints are `excluded` are not drawn. Each of several processes has its part
    of the batches.

    Raises:
        UserInputError: No example is left, or there are fewer batches than processes.
    """
    # Not the examples of the data set, of which some can have made no feature.
    fingerprints = [fingerprint(example) for example in features.examples]
    usable = [index for index, each in enumerate(fingerprints) if each not in excluded]
    if not usable:
        raise UserInputError(
            "All examples of `train_data` are also in `eval_data`, so none is left to calibrate "
            "on. Pass more training data.",
            argument="train_data",
        )
    count = min(options.calibration.samples, len(usable))
    chosen = sorted(random.Random(options.optimization.seed).sample(usable, count))
    made, encoded = features.by_example(), features.encoded
    picked = tuple(encoded.inputs[each] for index in chosen for each in made[index])
    batches = make_batches(
        Encoded(inputs=picked, padding=encoded.padding, truncated=0),
        batch_size=options.optimization.batch_size,
    )
    if len(batches) < processes:
        raise UserInputError(
            f"The {counted(count, 'calibration sample')} make {counted(len(batches), 'batch')} "
            f"for {processes} processes, which need one each. Raise `calibration_samples`.",
            argument="calibration_samples",
        )
    return Sample(
        batches=[
            {name: torch.from_numpy(x) for name, x in batch.inputs.items()}
            for batch in batches[process::processes]
        ],
        fingerprints=sorted(fingerprints[index] for index in chosen),
    )


def _uses_labels(task: Task, options: TrainOptions) -> bool:
    """Return whether the labels are read; a student that only follows its teacher needs none."""
    follows_only = bool(options.distillation.teacher) and options.distillation.alpha == 1
    return TASK_KINDS[task.name].predicts_words or not follows_only


def _training_labels(
    task: Task, features: Features, id2label: Mapping[int, str], *, uses_labels: bool
) -> Sequence[Labels | None]:
    """Return the labels of each feature, or of each pair if the model embeds."""
    if not uses_labels:
        return [{} for _ in (features.examples if task.is_embedding else features.encoded.inputs)]
    assert task.labels is not None, "refused by `choose_task`"
    return task.labels(features, id2label)


def _check_labels_differ(labels: Sequence[Labels | None], dataset: Dataset) -> None:
    """Refuse data of which every example has the same score or class."""
    values = [each.get("scores", each.get("labels")) for each in labels if each]
    if all(isinstance(each, int | float) for each in values) and len(set(values)) == 1:
        raise DataFileError(
            f"All labels of {labels_place(dataset)} are {dataset.examples[0].label!r}, from which "
            "nothing can be learned. Add examples with other labels, or name another column with "
            "`label_column`. Embedders also learn from pairs without a label.",
            argument="label_column",
        )


def _absent_classes(labels: Sequence[Labels | None], id2label: Mapping[int, str]) -> list[str]:
    present = {int(x) for each in labels if each for x in _classes(each.get("labels"))}
    absent = [name for index, name in id2label.items() if index not in present]
    if not absent:
        return []
    return [
        f"The training data have no example of {len(absent)} of the model's {len(id2label)} "
        f"classes, among them {absent[0]!r}: the model will unlearn them."
    ]


def _classes(label: Any) -> Sequence[Any]:
    """Return the classes in a label: one, one for each token, or those that a text has."""
    if label is None:
        return []
    if isinstance(label, np.ndarray):
        is_indicator = label.dtype.kind == "f"
        return list(np.flatnonzero(label) if is_indicator else label)
    return [label]
