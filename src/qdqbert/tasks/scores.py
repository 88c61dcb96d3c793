"""Labels that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from qdqbert.errors import DataFileError
from qdqbert.tasks.columns import is_number
from qdqbert.tasks.data import Dataset, Example, labels_place
from qdqbert.tasks.logits import of_pairs
from qdqbert.tasks.metrics import pearson, spearman
from qdqbert.tasks.task import Score
from qdqbert.tasks.texts import label_of


def score_of(example: Example) -> float:
    """Return the label as a number.

    Raises:
        DataFileError: The label is blank, or not a finite number.
    """
    label = label_of(example)
    if not is_number(label):
        raise DataFileError(
            f"Label {label!r} is not a finite number, and this model is scored by numbers. Name "
            "another column with `label_column`."
        )
    return float(label)


def scaled_scores(examples: Sequence[Example]) -> list[float]:
    """Return the labels as numbers, scaled to 0 to 1 if one of them is not in that range."""
    scores = [score_of(example) for example in examples]
    low, high = min(0.0, *scores), max(1.0, *scores)
    return [(score - low) / (high - low) for score in scores]


def check_scores_differ(dataset: Dataset) -> None:
    """Refuse data whose scores are all equal, as nothing correlates with them.

    Raises:
        DataFileError: All scores are equal, or there is only one.
    """
    scores = {score_of(example) for example in dataset.examples}
    if len(scores) == 1:
        raise DataFileError(
            f"All scores of {labels_place(dataset)} are {scores.pop():g}, and this model is scored "
            "by their correlation. Add examples with other scores, or name another column with "
            "`label_column`."
        )


def correlations(values: ArrayLike, examples: Sequence[Example]) -> list[Score]:
    """Return Spearman's and Pearson's correlation of a model's outputs with the labels, x 100.

    Args:
        values: One number for each example.
        examples: Examples with numbers as labels.

    Raises:
        DataFileError: A label is not a number, or the correlation is undefined: there is only one
            example, all labels or values are equal, or a value is not finite.
    """
    rows = np.array([values, [score_of(example) for example in examples]], dtype=np.float64).T
    found = [
        Score(name=name, rows=rows, compute=of_pairs(metric))
        for name, metric in (("spearman", spearman), ("pearson", pearson))
    ]
    try:
        for each in found:
            each.metric()
    except ValueError as error:
        raise DataFileError(f"The scores cannot be correlated: {error}") from error
    return found
