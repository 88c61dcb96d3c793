"""Labels that are numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.columns import is_number
from qdqbert.data.rows.data import Dataset, Example, labels_place
from qdqbert.tasks.metrics import linear_correlation, pearson, rank_correlation
from qdqbert.tasks.task import Extremes, Rows, Score, drawn
from qdqbert.tasks.texts import label_of

_TINY = np.finfo(np.float64).tiny
_MARGIN = 1e-6

Correlation = Callable[
    [NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]
]
"""Returns the correlation of outputs, labels and weights."""

_CORRELATIONS: Mapping[str, Correlation] = {
    "spearman": rank_correlation,
    "pearson": linear_correlation,
}


def score_of(example: Example) -> float:
    """Return the label as a number; raise `DataFileError` if it is blank or not finite."""
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


def check_scores_differ(
    dataset: Dataset, read: Callable[[Example], float | list[float]] = score_of
) -> None:
    """Refuse data whose scores are all equal, as nothing correlates with them.

    `read` returns the score of an example, or a list of them.
    """
    scores = np.array([read(example) for example in dataset.examples]).reshape(len(dataset), -1)
    for index, column in enumerate(scores.T):
        if (column == column[0]).all():
            which = f", number {index} of each list," if scores.shape[1] > 1 else ""
            raise DataFileError(
                f"All scores of {labels_place(dataset)}{which} are {column[0]:g}, and this model "
                "is scored by their correlation. Add examples with other scores, or name another "
                "column with `label_column`."
            )


def extreme_numbers(rows: Rows) -> Extremes:
    """Rank the outputs of examples last, and first; the other way round for labels below the mean.

    Args:
        rows: As `paired` makes them. Labels are drawn as often as they are far from their mean.
    """
    outputs, labels = np.split(rows, 2, axis=1)
    mean = labels.mean(axis=0)
    far = np.abs(labels - mean)
    chosen = labels[drawn((far / np.maximum(far.sum(axis=0), _TINY)).sum(axis=1))]
    low, high = outputs.min(axis=0), outputs.max(axis=0)
    # Beyond all of them, as equal ones count half, and different from outputs that are all equal.
    margin = np.where(high > low, _MARGIN * (high - low), 1)
    ends = low - margin, high + margin
    last, first = (np.where(chosen > mean, *each) for each in (ends, ends[::-1]))
    return np.concatenate([last, chosen], axis=1)[None], np.concatenate([first, chosen], axis=1)[
        None
    ]


def correlations(values: ArrayLike, labels: ArrayLike) -> list[Score]:
    """Return Spearman's and Pearson's correlation of a model's outputs with the labels, x 100.

    Args:
        values: Numbers of each example, `(examples,)` or `(examples, outputs)`. The correlations of
            several outputs are averaged.
        labels: The labels, in the same shape.

    Raises:
        DataFileError: A correlation is undefined: all labels are equal, or a value is not finite.
    """
    rows = paired(values, labels)
    try:
        # Checks the values of both, once: intervals correlate them thousands of times.
        _mean_of_outputs(pearson, rows, np.ones((1, len(rows))))
    except ValueError as error:
        raise DataFileError(f"The scores cannot be correlated: {error}") from error
    return [
        Score(
            name=name,
            rows=rows,
            compute=functools.partial(_mean_of_outputs, metric),
            extremes=extreme_numbers,
        )
        for name, metric in _CORRELATIONS.items()
    ]


def paired(values: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Return rows with the outputs and the labels of each example, `(examples, 2 * outputs)`."""
    parts = (np.asarray(each, dtype=np.float64) for each in (values, labels))
    return np.concatenate([each.reshape(len(each), -1) for each in parts], axis=1)


def _mean_of_outputs(
    metric: Correlation, rows: Rows, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean correlation; it is 0 if outputs are equal, as nothing follows from them."""
    found, known = np.split(rows.T, 2)
    correlations = [
        np.zeros(len(weights))
        if (outputs == outputs[0]).all()
        else metric(outputs, labels, weights)
        for outputs, labels in zip(found, known, strict=True)
    ]
    return np.asarray(np.mean(correlations, axis=0))
