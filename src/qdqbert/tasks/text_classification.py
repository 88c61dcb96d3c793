"""Classes of texts or pairs of texts; with one output, scores of pairs (rerankers, regression)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.class_names import class_of, name_classes, plain_number, sorted_names
from qdqbert.tasks.columns import is_number
from qdqbert.tasks.data import Dataset, Example, check_each, labels_place, read_dataset
from qdqbert.tasks.logits import (
    class_answers,
    logit_predictions,
    most_likely_classes,
    of_pairs,
    score_answers,
)
from qdqbert.tasks.metrics import accuracy, f1_binary, f1_macro, matthews
from qdqbert.tasks.scores import check_scores_differ, correlations, score_of
from qdqbert.tasks.task import Answer, Features, Labels, Predictions, Score, Task
from qdqbert.tasks.texts import check_label_column, encode_texts, label_of


def _name_labels(dataset: Dataset, id2label: Mapping[int, str]) -> Dataset:
    if len(id2label) == 1:
        return dataset
    labels = [(each.label or "").strip() for each in dataset.examples]
    naming = name_classes(filter(None, labels), id2label, where=labels_place(dataset))
    if not naming.names:
        return dataset
    examples = tuple(
        dataclasses.replace(each, label=naming.names.get(label, each.label))
        for each, label in zip(dataset.examples, labels, strict=True)
    )
    notices = (*dataset.notices, *naming.notices)
    return dataclasses.replace(dataset, examples=examples, notices=notices)


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    check_label_column(dataset)
    check_each(dataset, lambda example: _label(example, id2label))


def _check_metrics(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    if len(id2label) == 1:
        check_scores_differ(dataset)


def _label(example: Example, id2label: Mapping[int, str]) -> int | float:
    """Return the class of an example, or its score if the model has one output."""
    return score_of(example) if len(id2label) == 1 else class_of(label_of(example), id2label)


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Score]:
    """Return accuracy first; `f1` is that of class 1, as in GLUE."""
    del options
    logits = np.stack(predictions)
    if logits.shape[1] == 1:
        return correlations(logits[:, 0], features.examples)
    labels = [class_of(label_of(example), id2label) for example in features.examples]
    rows = np.stack([logits.argmax(axis=1), labels], axis=1).astype(np.float64)
    f1 = {"f1": f1_binary} if logits.shape[1] == 2 else {"f1_macro": f1_macro}
    metrics = {"accuracy": accuracy, **f1, "mcc": matthews}
    return [Score(name=name, rows=rows, compute=of_pairs(each)) for name, each in metrics.items()]


def _answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Answer]:
    del tokenizer, options
    given = [example.given for example in features.examples]
    if len(predictions[0]) == 1:
        return score_answers(np.concatenate(predictions), given, "score")
    return class_answers(predictions, given, id2label)


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    return [{"labels": _label(example, id2label)} for example in features.examples]


def _class_names(dataset: Dataset) -> list[str]:
    """Return all labels, sorted, integers by value; or one `score` if some are fractions."""
    check_label_column(dataset)
    check_each(dataset, label_of)
    names = {label_of(example) for example in dataset.examples}
    if all(is_number(name) for name in names) and not all(
        float(name).is_integer() for name in names
    ):
        return ["score"]
    return sorted_names({plain_number(name) for name in names})


TEXT_CLASSIFICATION = Task(
    name="text-classification",
    read=read_dataset,
    encode=encode_texts,
    name_labels=_name_labels,
    check_labels=_check_labels,
    check_metrics=_check_metrics,
    predictions=logit_predictions,
    scores=_scores,
    decisions=most_likely_classes,
    labels=_labels,
    answers=_answers,
    class_names=_class_names,
)
