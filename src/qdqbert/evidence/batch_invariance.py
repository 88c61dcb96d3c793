"""Measure whether the result for a text depends on the other texts of its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from qdqbert.evidence.fidelity import changed_counts
from qdqbert.tasks.task import Decisions, Prediction, Predictions


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchInvariance:
    """How predictions change between a batch with padding and each text alone.

    Attributes:
        texts: Number of texts that ran alone, too.
        differing: Number of these whose prediction is not bit-identical.
        largest_difference: Largest absolute difference of a value of a prediction: of logits,
            embeddings and so on.
        changed_decisions: Number of decisions that differ; `None` for tasks without decisions.
    """

    texts: int
    differing: int
    largest_difference: float
    changed_decisions: int | None

    @property
    def is_exact(self) -> bool:
        """Whether no prediction changed."""
        return self.differing == 0


def compare_alone(
    together: Predictions,
    alone: Mapping[int, Prediction],
    decisions: tuple[Decisions, Decisions] | None,
) -> BatchInvariance:
    """Compare predictions of texts in batches with predictions of the same texts alone."""
    differences = [
        float(np.abs(values - together[index]).max(initial=0)) for index, values in alone.items()
    ]
    changed = None
    if decisions is not None:
        changed = int(changed_counts(*decisions)[:, 0].sum())
    return BatchInvariance(
        texts=len(alone),
        differing=sum(difference > 0 for difference in differences),
        largest_difference=max(differences, default=0.0),
        changed_decisions=changed,
    )
