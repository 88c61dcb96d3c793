"""What tasks whose answer is the largest of a row of logits share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Features, Metric, Prediction, Predictions, TaskOptions


def logit_rows(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    """The logits of each input row, `(classes,)`."""
    del batch, features
    return list(outputs["logits"])


def largest(
    rows: Predictions, features: Features, options: TaskOptions
) -> Sequence[Hashable] | None:
    """The index that each row answers; `None` where there is nothing to choose from."""
    del features, options
    return None if len(rows[0]) == 1 else [int(row.argmax()) for row in rows]


def accuracy_of(rows: Predictions, labels: Sequence[int]) -> Metric:
    """How many rows answer their label."""
    value = accuracy([int(row.argmax()) for row in rows], labels)
    return Metric(name="accuracy", value=value, examples=len(labels))
