"""Any number of classes for each text or pair of texts.

The task of text classifiers whose config has `problem_type="multi_label_classification"`. A class
is predicted if its sigmoid is above 0.5, so if its logit is above 0.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Dataset, Example, check_each, read_dataset
from qdqbert.tasks.logits import logit_predictions
from qdqbert.tasks.metrics import multi_label_scores
from qdqbert.tasks.task import (
    Answer,
    Compute,
    Features,
    Labels,
    Predictions,
    Score,
    Task,
    TaskOptions,
)
from qdqbert.tasks.texts import check_label_column, class_of, encode_texts, sorted_names

# What separates labels in a cell. The first one that occurs counts.
_SEPARATORS = "|;,"


def labels_of(example: Example) -> tuple[str, ...]:
    """Return the labels of an example: a JSON list, or words joined by `|`, `;` or `,`.

    Raises:
        DataFileError: The list is not one of strings or numbers.
    """
    text = (example.label or "").strip()
    if not text.startswith("["):
        separator = next((each for each in _SEPARATORS if each in text), None)
        parts = text.split(separator) if separator else [text]
        return tuple(each.strip() for each in parts if each.strip())
    try:
        listed = json.loads(text)
    except ValueError:
        listed = [None]
    if not all(isinstance(each, str | int | float) for each in listed):
        raise DataFileError(
            f"Labels must be a list of strings or numbers, got {text!r:.60}. Change the value."
        )
    return tuple(str(each) for each in listed)


def _classes_of(example: Example, id2label: Mapping[int, str]) -> frozenset[int]:
    whole = (example.label or "").strip()
    # The name of a class can contain a separator.
    names = [whole] if whole.lower() in map(str.lower, id2label.values()) else labels_of(example)
    return frozenset(class_of(name, id2label) for name in names)


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    check_label_column(dataset)
    check_each(dataset, lambda example: _classes_of(example, id2label))


def _indicators(features: Features, id2label: Mapping[int, str]) -> NDArray[np.bool_]:
    """Return whether each example has each class. Shape `(examples, classes)`."""
    indicators = np.zeros((len(features.examples), len(id2label)), dtype=np.bool_)
    for row, example in zip(indicators, features.examples, strict=True):
        row[sorted(_classes_of(example, id2label))] = True
    return indicators


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskOptions,
) -> list[Score]:
    del options
    chosen, known = np.stack(predictions) > 0, _indicators(features, id2label)
    rows = np.concatenate([chosen, known], axis=1).astype(np.float64)
    return [
        Score(name=name, rows=rows, compute=_of_sets(name, chosen.shape[1]))
        for name in multi_label_scores(chosen, known)
    ]


def _of_sets(name: str, classes: int) -> Compute:
    """Return the metric of rows with the predicted classes, then the labelled ones."""
    return lambda rows: multi_label_scores(rows[:, :classes] > 0, rows[:, classes:] > 0)[name]


def _decisions(
    predictions: Predictions, features: Features, options: TaskOptions
) -> Sequence[Hashable]:
    """Return the set of classes of each text."""
    del features, options
    return [frozenset(np.flatnonzero(each > 0).tolist()) for each in predictions]


def _answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskOptions,
) -> list[Answer]:
    """Return the classes of each text, the most likely one first."""
    del tokenizer, options
    answers = []
    for logits, example in zip(predictions, features.examples, strict=True):
        # The sigmoid, without an exponential that overflows.
        found = (1 + np.tanh(logits.astype(np.float64) / 2)) / 2
        chosen = [int(each) for each in np.argsort(-logits, kind="stable") if logits[each] > 0]
        answers.append(
            Answer(
                given=example.given,
                found={
                    "prediction": [id2label[each] for each in chosen],
                    "scores": [float(found[each]) for each in chosen],
                },
                numbers=found,
            )
        )
    return answers


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """Return 1 for each class that a text has, and 0 for the rest. Shape `(classes,)`."""
    return [{"labels": row.astype(np.float32)} for row in _indicators(features, id2label)]


def _class_names(dataset: Dataset) -> list[str]:
    """Return all labels, sorted, integers by value."""
    check_label_column(dataset)
    check_each(dataset, labels_of)
    return sorted_names({name for example in dataset.examples for name in labels_of(example)})


MULTI_LABEL_CLASSIFICATION = Task(
    name="text-classification",
    read=read_dataset,
    encode=encode_texts,
    check_labels=_check_labels,
    predictions=logit_predictions,
    scores=_scores,
    decisions=_decisions,
    labels=_labels,
    answers=_answers,
    class_names=_class_names,
)
