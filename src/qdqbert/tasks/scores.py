"""Labels that are numbers."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Example


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
