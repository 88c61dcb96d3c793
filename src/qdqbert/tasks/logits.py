"""Functions shared by tasks whose answer is the class with the largest logit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.encoding import Batch
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Compute, Features, Prediction, Predictions, Score, TaskOptions


def logit_predictions(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    """Return the logits of each feature, `(classes,)`."""
    del batch, features
    return list(outputs["logits"])


def most_likely_classes(
    predictions: Predictions, features: Features, options: TaskOptions
) -> Sequence[Hashable] | None:
    """Return the index of the largest logit of each feature; `None` if there is only one class."""
    del features, options
    return None if len(predictions[0]) == 1 else [int(each.argmax()) for each in predictions]


def accuracy_score(predictions: Predictions, labels: Sequence[int]) -> Score:
    """Return the share of features whose largest logit is that of their label."""
    classes = np.array([each.argmax() for each in predictions], dtype=np.float64)
    rows = np.stack([classes, labels], axis=1)
    return Score(name="accuracy", rows=rows, compute=of_pairs(accuracy))


def of_pairs(metric: Callable[[ArrayLike, ArrayLike], float]) -> Compute:
    """Return a metric of predictions and labels as one of rows `(examples, 2)`."""
    return lambda rows: metric(rows[:, 0], rows[:, 1])
