"""F1, precision and recall of entities, computed from the counts of each sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.tasks.entities import EntityCounts
from qdqbert.tasks.task import Compute, Extremes, Rows, Score, drawn_by_size, one_kind


def entity_scores(counts: Sequence[EntityCounts]) -> list[Score]:
    """Return the scores of sentences, of which each has counts, the F1 first."""
    rows = np.array(
        [[each.predicted, each.labelled, each.correct] for each in counts], dtype=np.float64
    )
    return [
        Score(name=name, rows=rows, compute=_of_counts(name), extremes=_extremes)
        for name in ("f1", "precision", "recall")
    ]


def _of_counts(name: str) -> Compute:
    """Return a score of rows with the numbers of predicted, labelled and correct entities."""

    def compute(rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = (
            EntityCounts(predicted=predicted, labelled=labelled, correct=correct)
            for predicted, labelled, correct in (weights @ rows).tolist()
        )
        return np.array([getattr(each, name) for each in counts])

    return compute


def _extremes(rows: Rows) -> Extremes:
    """Predict as many wrong entities as there are right ones, and the right ones."""
    known = drawn_by_size(rows[:, 1])
    return one_kind(known, known, np.zeros_like(known)), one_kind(known, known, known)
