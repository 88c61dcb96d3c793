"""Any number of classes for each text or pair of texts.

The task of text classifiers whose config has `problem_type="multi_label_classification"`. A class
is predicted if its sigmoid is above 0.5, so if its logit is above 0.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Dataset, Example, check_each, labels_place, read_dataset
from qdqbert.tasks.class_names import class_named, class_of, name_classes, new_names, sorted_names
from qdqbert.tasks.logits import apply, confused_classes, logit_predictions
from qdqbert.tasks.metrics import multi_label_scores
from qdqbert.tasks.task import (
    Answer,
    Compute,
    Decisions,
    Extremes,
    Features,
    Labels,
    Outcome,
    Rows,
    Score,
    Task,
    drawn,
)
from qdqbert.tasks.texts import check_label_column, checking, encode_texts

# Separators of labels in a cell. The first one that occurs counts.
_SEPARATORS = "|;,"
# Values in a list that has a place for each class.
_NO, _YES = {"0", "0.0", "false"}, {"1", "1.0", "true"}


def labels_of(example: Example) -> tuple[str, ...]:
    """Return the labels of an example: a JSON list, or words joined by `|`, `;` or `,`."""
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


def _names_of(example: Example, id2label: Mapping[int, str]) -> tuple[str, ...]:
    whole = (example.label or "").strip()
    # The name of a class can contain a separator.
    return labels_of(example) if class_named(whole, id2label) is None else (whole,)


def _classes_of(example: Example, id2label: Mapping[int, str]) -> frozenset[int]:
    return frozenset(class_of(name, id2label) for name in _names_of(example, id2label))


def _are_indicators(lists: Sequence[Sequence[str]]) -> bool:
    """Return whether each list has 0 or 1 for each class, instead of the classes themselves.

    One list names no class twice, and all lists have one length if each has a place for each class.
    """
    values = {value.lower() for each in lists for value in each}
    return (
        values <= _NO | _YES
        and len({len(each) for each in lists}) == 1
        and any(len(set(each)) < len(each) for each in lists)
    )


def _name_labels(dataset: Dataset, id2label: Mapping[int, str]) -> Dataset:
    """Name the classes of numbers, and of lists with 0 or 1 for each class."""
    check_each(dataset, labels_of)
    lists = [_names_of(each, id2label) for each in dataset.examples]
    if _are_indicators(lists) and len(lists[0]) == len(id2label):
        order = sorted(id2label)
        lists = [
            tuple(str(index) for index, value in zip(order, each, strict=True) if value in _YES)
            for each in ([value.lower() for value in each] for each in lists)
        ]
        names = {str(index): id2label[index] for index in order}
        notices: tuple[str, ...] = ("Labels are read as 0 or 1 for each class, in their order.",)
    else:
        every = {name for each in lists for name in each}
        naming = name_classes(every, id2label, where=labels_place(dataset))
        names, notices = dict(naming.names), naming.notices
    if not names:
        return dataset
    examples = tuple(
        dataclasses.replace(example, label=json.dumps([names.get(name, name) for name in each]))
        for example, each in zip(dataset.examples, lists, strict=True)
    )
    return dataclasses.replace(dataset, examples=examples, notices=(*dataset.notices, *notices))


def _indicators(features: Features, id2label: Mapping[int, str]) -> NDArray[np.bool_]:
    """Return whether each example has each class. Shape `(examples, classes)`."""
    indicators = np.zeros((len(features.examples), len(id2label)), dtype=np.bool_)
    for row, example in zip(indicators, features.examples, strict=True):
        row[sorted(_classes_of(example, id2label))] = True
    return indicators


def _scores(outcome: Outcome) -> list[Score]:
    chosen = np.stack(outcome.predictions) > 0
    known = _indicators(outcome.features, outcome.id2label)
    rows = np.concatenate([chosen, known], axis=1).astype(np.float64)
    return [
        Score(name=name, rows=rows, compute=_of_sets(name), extremes=extremes)
        for name, extremes in _EXTREMES.items()
    ]


def _of_sets(name: str) -> Compute:
    """Return the metric of rows with the predicted classes, then the labelled ones."""

    def compute(rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        chosen, known = np.split(rows > 0, 2, axis=1)
        return multi_label_scores(chosen, known, weights)[name]

    return compute


def _extreme_sets(rows: Rows) -> Extremes:
    """Predict as many wrong classes as there are right ones, and the right ones."""
    known = np.split(rows > 0, 2, axis=1)[1]
    counts = known.sum(axis=0)
    sets = known[drawn(np.square(known.sum(axis=1, dtype=np.float64)))]
    if not counts.any():
        sets[:, 0] = True
    # Wrong classes first, of these the rarest ones.
    ranks = np.argsort(np.argsort(counts / len(known) + sets, axis=1), axis=1)
    wrong = (ranks < sets.sum(axis=1, keepdims=True)) & ~sets
    return _of_one_kind(wrong, sets), _of_one_kind(sets, sets)


def _extreme_classes(rows: Rows) -> Extremes:
    """Predict a wrong class where another one is right, see `confused_classes`, or a wrong set."""
    low, high = (each[:, len(each[0]) // 2] for each in _extreme_sets(rows))
    counts = np.split(rows > 0, 2, axis=1)[1].sum(axis=0)
    if len(counts) > 1:
        wrong, right = np.eye(len(counts))[np.array(confused_classes(counts)).T]
        low = np.concatenate([low, np.concatenate([wrong, right], axis=1)])
        high = np.concatenate([high, np.concatenate([right, right], axis=1)])
    return low[:, None], high[:, None]


def _of_one_kind(chosen: NDArray[np.bool_], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.concatenate([chosen, known], axis=1)[None].astype(np.float64)


_EXTREMES: Mapping[str, Callable[[Rows], Extremes]] = {
    "f1_micro": _extreme_sets,
    "f1_macro": _extreme_classes,
    "subset_accuracy": _extreme_sets,
}


def _decisions(outcome: Outcome) -> Decisions:
    """Return the set of classes of each text."""
    return [(frozenset(np.flatnonzero(each > 0).tolist()),) for each in outcome.predictions]


def _answers(outcome: Outcome) -> list[Answer]:
    """Return the classes of each text, the most likely one first."""
    answers = []
    for logits, example in zip(outcome.predictions, outcome.examples, strict=True):
        found = apply("sigmoid", logits.astype(np.float64))
        chosen = [int(each) for each in np.argsort(-logits, kind="stable") if logits[each] > 0]
        answers.append(
            Answer(
                given=example.given,
                found={
                    "prediction": [outcome.id2label[each] for each in chosen],
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
    """Return all labels, sorted, integers by value; transformers' names if there are none."""
    check_label_column(dataset)
    check_each(dataset, labels_of)
    lists = [labels_of(example) for example in dataset.examples]
    if _are_indicators(lists):
        return [f"LABEL_{index}" for index in range(len(lists[0]))]
    return sorted_names(new_names(dataset, labels_of))


MULTI_LABEL_CLASSIFICATION = Task(
    name="text-classification",
    read=read_dataset,
    encode=encode_texts,
    name_labels=_name_labels,
    check_labels=checking(_classes_of),
    predictions=logit_predictions,
    scores=_scores,
    decisions=_decisions,
    labels=_labels,
    answers=_answers,
    leaves_out_unlabeled=False,
    class_names=_class_names,
)
