"""Functions shared by tasks whose answer is the class with the largest logit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Features, Metric, Prediction, Predictions, TaskOptions


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


def accuracy_metric(predictions: Predictions, labels: Sequence[int]) -> Metric:
    """Return the share of features whose largest logit is that of their label."""
    value = accuracy([int(each.argmax()) for each in predictions], labels)
    return Metric(name="accuracy", value=value, examples=len(labels))
