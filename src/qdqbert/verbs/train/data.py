"""What `train` feeds a model with: examples -> features -> rows with labels, and a sample of them.

What a user should know of the data comes back as notices.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qdqbert.checkpoint.load import Checkpoint, has_head
from qdqbert.encoding import Encoded, make_batches
from qdqbert.errors import DataFileError, UserInputError
from qdqbert.progress import Progress
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Dataset, fingerprint
from qdqbert.tasks.scores import scores_of
from qdqbert.tasks.task import Features, Labels, Task
from qdqbert.training.dataset import TrainingDataset
from qdqbert.verbs.settings import columns_of, task_options_of
from qdqbert.verbs.train.options import TrainOptions

_UNANNOTATED = ("fill-mask", "text-generation")
# Tasks whose labels are the texts themselves.


def choose_task(options: TrainOptions) -> Task:
    """The task that was asked for, or else the one that the checkpoint has a head for.

    Raises:
        UserInputError: It is unknown, or there is no head and none was asked for.
    """
    name = options.task or _task_of(options.model)
    if name not in TASKS:
        raise UserInputError(f"`--task {name}` is unknown. Known: {', '.join(TASKS)}.")
    return TASKS[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """Data as they were read.

    Attributes:
        train: To train on.
        held: To evaluate on, if there are any; some, but not all, may be in `train` too.
        notices: What a user should know of both.
    """

    train: Dataset
    held: Dataset | None
    notices: tuple[str, ...]


def read_examples(task: Task, options: TrainOptions, *, progress: Progress) -> Examples:
    """Reads training and evaluation data.

    Raises:
        DataFileError: They are not what the task reads.
        UserInputError: All of the evaluation data are trained on.
    """
    held = None
    with progress.stage("Reading the data"):
        train = task.read(
            options.train_data, columns=columns_of(options), max_examples=options.max_train_examples
        )
        if options.eval_data:
            held = task.read(
                options.eval_data,
                columns=columns_of(options),
                max_examples=options.max_eval_examples,
            )
    if held is None:
        return Examples(train=train, held=None, notices=train.notices)
    notices = [*train.notices, *(f"Of the evaluation data: {each}" for each in held.notices)]
    known = {fingerprint(example) for example in train.examples}
    shared = sum(fingerprint(example) in known for example in held.examples)
    if shared == len(held):
        raise UserInputError(
            f"All {shared} examples of `--eval-data {options.eval_data}` are in `--train-data "
            f"{options.train_data}` too. Hold examples out, or leave `--eval-data` away."
        )
    if shared:
        notices.append(
            f"{shared} of {len(held)} evaluation examples are trained on too: the metrics flatter."
        )
    return Examples(train=train, held=held, notices=tuple(notices))


def new_classes(task: Task, dataset: Dataset, teacher: Checkpoint | None) -> list[str]:
    """Classes of a head that has to be made: the teacher's in their order, or the data's."""
    if task.class_names(()) is None:
        return []
    if teacher is not None:
        return list(teacher.config.id2label.values())
    return task.class_names(dataset.examples) or []


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Examples as a model is fed with them.

    Attributes:
        features: Of the training examples.
        rows: The same with labels, for the Trainer.
        held: Features of the evaluation examples, if there are any.
        max_length: Longest row in tokens.
        notices: What a user should know of all of them.
    """

    features: Features
    rows: TrainingDataset
    held: Features | None
    max_length: int
    notices: tuple[str, ...]


def encode_data(
    task: Task,
    checkpoint: Checkpoint,
    examples: Examples,
    options: TrainOptions,
    *,
    progress: Progress,
) -> TrainingData:
    """Tokenizes examples as the task feeds the checkpoint.

    Raises:
        DataFileError: A label is missing or unknown, or an embedder has no pairs.
    """
    asked = options.max_length or task.max_length or checkpoint.max_length
    encode = functools.partial(
        task.encode,
        tokenizer=checkpoint.tokenizer,
        input_names=checkpoint.input_names,
        max_length=min(asked, checkpoint.max_length),
        options=task_options_of(options, {}, seed=options.seed),
    )
    with progress.stage("Tokenizing the training data"):
        features = encode(examples.train.examples)
    rows, absent = _training_rows(task, features, checkpoint.config, options)
    notices = [*(f"Of the training data: {each}" for each in features.notices), *absent]
    held = None
    if examples.held is not None:
        with progress.stage("Tokenizing the evaluation data"):
            held = encode(examples.held.examples)
        notices += [f"Of the evaluation data: {each}" for each in held.notices]
        task.labels(held, checkpoint.config.id2label)  # unknown ones fail here, not later
    return TrainingData(
        features=features,
        rows=rows,
        held=held,
        max_length=min(asked, checkpoint.max_length),
        notices=tuple(notices),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """What ranges are taken from.

    Attributes:
        batches: Arguments of the model; of several processes, those of this one.
        fingerprints: `tasks.data.fingerprint` of each example in the batches of all processes.
    """

    batches: list[dict[str, Tensor]]
    fingerprints: list[str]


def calibration_sample(
    task: Task,
    features: Features,
    held: Dataset | None,
    options: TrainOptions,
    *,
    processes: int = 1,
    process: int = 0,
) -> Sample:
    """Draws training examples that are not evaluated on.

    Args:
        task: What they are for.
        features: The training examples'.
        held: The evaluation data.
        options: How many, the seed that draws them, and rows of a batch.
        processes: How many share the batches.
        process: Which of them this one is, from 0.

    Raises:
        UserInputError: None is left, or there are fewer batches than processes.
    """
    banned = {fingerprint(example) for example in held.examples} if held else set()
    # Not those of the data set: some of its examples may have made no row.
    examples = features.examples
    usable = [index for index, example in enumerate(examples) if fingerprint(example) not in banned]
    if not usable:
        raise UserInputError("No training example is left that is not in the evaluation data.")
    count = min(options.calibration_samples, len(usable))
    chosen = sorted(random.Random(options.seed).sample(usable, count))
    rows, encoded = _rows_by_example(features, task), features.encoded
    picked = tuple(encoded.rows[row] for index in chosen for row in rows[index])
    batches = make_batches(
        Encoded(rows=picked, padding=encoded.padding, truncated=0), batch_size=options.batch_size
    )
    if len(batches) < processes:
        raise UserInputError(
            f"`--calibration-samples {count}` make {len(batches)} batches for {processes} "
            "processes. Calibrate on more."
        )
    return Sample(
        batches=[
            {name: torch.from_numpy(x) for name, x in batch.inputs.items()}
            for batch in batches[process::processes]
        ],
        fingerprints=sorted(fingerprint(examples[index]) for index in chosen),
    )


def _task_of(model: str) -> str:
    """The task that a checkpoint was trained for."""
    for name in TASKS:
        if name != "feature-extraction" and has_head(model, name):  # type: ignore[arg-type]
            return name
    raise UserInputError(
        f"What {model!r} is to be trained for is not known: it has no head. Pass `--task`, one of: "
        f"{', '.join(TASKS)}."
    )


def _training_rows(
    task: Task, features: Features, config: Any, options: TrainOptions
) -> tuple[TrainingDataset, list[str]]:
    """Rows with what a model of that config is trained with, and notices on classes without any."""
    is_led_only = bool(options.distill_from) and options.distill_alpha == 1
    notices: list[str] = []
    labels: Sequence[Labels | None]
    if task.is_embedding:
        labels = _pair_scores(features, needed=not is_led_only)
    elif is_led_only and task.name not in _UNANNOTATED:
        labels = [{} for _ in features.encoded.rows]
    else:
        labels = task.labels(features, config.id2label)
        if task.class_names(features.examples) is not None and config.num_labels > 1:
            notices = _absent_classes(labels, config.id2label)
    return TrainingDataset(features, labels, pairs=task.is_embedding), notices


def _absent_classes(labels: Sequence[Labels | None], id2label: Mapping[int, str]) -> list[str]:
    present = {int(x) for each in labels if each for x in _flat(each.get("labels"))}
    absent = [name for index, name in id2label.items() if index not in present]
    if not absent:
        return []
    return [
        f"The training data has no example of {len(absent)} of the model's {len(id2label)} "
        f"classes, among them {absent[0]!r}: it will unlearn them."
    ]


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


def _flat(value: Any) -> Sequence[Any]:
    if value is None:
        return []
    return value.tolist() if hasattr(value, "tolist") else [value]
