"""Classes of texts or pairs of texts; with one output, scores of pairs (rerankers, regression)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qdqbert.tasks.data import Example
from qdqbert.tasks.logits import largest, logit_rows
from qdqbert.tasks.metrics import accuracy, f1_binary, f1_macro, matthews
from qdqbert.tasks.scores import correlations, scores_of
from qdqbert.tasks.task import Features, Labels, Metric, Predictions, Task, TaskOptions
from qdqbert.tasks.texts import class_of, encode_together, label_of, read_texts


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    """Accuracy first; `f1` is of class 1, as GLUE has it."""
    del options
    logits = np.stack(rows)
    if logits.shape[1] == 1:
        return correlations(logits[:, 0], features.examples)
    predictions, labels = logits.argmax(axis=1), _classes(features, id2label)
    values = {"accuracy": accuracy(predictions, labels)}
    if logits.shape[1] == 2:
        values["f1"] = f1_binary(predictions, labels)
    else:
        values["f1_macro"] = f1_macro(predictions, labels)
    values["mcc"] = matthews(predictions, labels)
    return [Metric(name=n, value=value, examples=len(labels)) for n, value in values.items()]


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    if len(id2label) == 1:
        return [{"labels": score} for score in scores_of(features.examples)]
    return [{"labels": label} for label in _classes(features, id2label)]


def _classes(features: Features, id2label: Mapping[int, str]) -> list[int]:
    return [class_of(label_of(example), id2label) for example in features.examples]


def _class_names(examples: Sequence[Example]) -> list[str]:
    """All labels, sorted, integers by their value; one score where they are other numbers."""
    names = {label_of(example) for example in examples}
    if all(_is_number(name) for name in names) and not all(
        float(name).is_integer() for name in names
    ):
        return ["score"]
    return sorted(
        names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)
    )


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


TEXT_CLASSIFICATION = Task(
    name="text-classification",
    read=read_texts,
    encode=encode_together,
    rows=logit_rows,
    metrics=_metrics,
    decisions=largest,
    labels=_labels,
    class_names=_class_names,
)
