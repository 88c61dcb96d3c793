"""Labels that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Example
from qdqbert.tasks.metrics import pearson, spearman
from qdqbert.tasks.task import Metric


def scores_of(examples: Sequence[Example]) -> list[float]:
    """The labels as numbers.

    Raises:
        DataFileError: An example has no label, or one that is no number.
    """
    scores = []
    for example in examples:
        if example.label is None:
            raise DataFileError(
                "The data has no scores to compare with. Name their column with `--label-column`."
            )
        try:
            scores.append(float(example.label))
        except ValueError as error:
            raise DataFileError(
                f"Label {example.label!r} is no number, and this model is scored by numbers. "
                "Name another column with `--label-column`."
            ) from error
    return scores


def correlations(values: ArrayLike, examples: Sequence[Example]) -> list[Metric]:
    """Spearman and Pearson correlation of what a model says with the labels, x 100.

    Args:
        values: One number an example.
        examples: With numbers as labels.

    Raises:
        DataFileError: A label is no number, or there is no correlation to speak of: one example,
            equal labels, or a number that is not finite.
    """
    scores = scores_of(examples)
    try:
        found = {"spearman": spearman(values, scores), "pearson": pearson(values, scores)}
    except ValueError as error:
        raise DataFileError(f"The scores cannot be correlated: {error}") from error
    return [Metric(name=name, value=value, examples=len(examples)) for name, value in found.items()]
