"""Whether a second text follows the first. As in BERT, class 0 means yes and class 1 means no."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdqbert.errors import DataFileError
from qdqbert.objects import Rows
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.data import Columns, Dataset, Example, check_each, read_dataset
from qdqbert.tasks.logits import (
    accuracy_score,
    class_answers,
    logit_predictions,
    most_likely_classes,
)
from qdqbert.tasks.task import Answer, Features, Labels, Predictions, Score, Task
from qdqbert.tasks.texts import check_label_column, encode_texts, label_of

NAMES: Mapping[int, str] = {0: "is_next", 1: "not_next"}
"""Names of the two classes in answers."""

# Labels of the two classes, which the config of a checkpoint does not name.
_CLASSES = {
    **dict.fromkeys(("0", "next", "is_next", "isnext", "true"), 0),
    **dict.fromkeys(("1", "random", "not_next", "notnext", "false"), 1),
}


def read_pairs(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read pairs of texts with their labels; see `read_dataset`.

    Raises:
        DataFileError: As `read_dataset`, or there is no column of second texts.
    """
    dataset = read_dataset(data, columns=columns, max_examples=max_examples)
    if dataset.examples[0].text_pair is None:
        raise DataFileError(
            f"The data `{data}` have one text per row, and next-sentence-prediction reads two. "
            "Name the second one with `text_pair_column`.",
            argument="text_pair_column",
        )
    return dataset


def _name_labels(dataset: Dataset, id2label: Mapping[int, str]) -> Dataset:
    """Say how labels are read that do not say themselves which class they mean."""
    del id2label
    labels = {(each.label or "").strip().lower().removesuffix(".0") for each in dataset.examples}
    unclear = sorted(labels & {"0", "1", "true", "false"})
    if not unclear:
        return dataset
    listed = ", ".join(f"{each!r} is {NAMES[_CLASSES[each]]!r}" for each in unclear)
    notices = (*dataset.notices, f"Labels are read as in BERT's training: {listed}.")
    return dataclasses.replace(dataset, notices=notices)


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    del id2label
    check_label_column(dataset)
    check_each(dataset, _class_of)


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Score]:
    del id2label, options
    return [accuracy_score(predictions, [_class_of(example) for example in features.examples])]


def _answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Answer]:
    del tokenizer, id2label, options
    return class_answers(predictions, [each.given for each in features.examples], NAMES)


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    del id2label
    return [{"labels": _class_of(example)} for example in features.examples]


def _class_of(example: Example) -> int:
    label = label_of(example)
    name = label.lower().removesuffix(".0")
    if name not in _CLASSES:
        raise DataFileError(
            f"Label {label!r} must be 0, 'next' or 'true' if the second text follows the first, "
            "and 1, 'random' or 'false' if not. Name another column with `label_column`, or "
            "change the labels."
        )
    return _CLASSES[name]


NEXT_SENTENCE_PREDICTION = Task(
    name="next-sentence-prediction",
    read=read_pairs,
    encode=encode_texts,
    name_labels=_name_labels,
    check_labels=_check_labels,
    predictions=logit_predictions,
    scores=_scores,
    decisions=most_likely_classes,
    labels=_labels,
    answers=_answers,
)
