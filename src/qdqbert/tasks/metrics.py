"""Metrics of whole data sets, in percent as in the literature, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of predictions that equal their label, in percent, 0 to 100.

    Args:
        predictions: Predicted classes. Shape `(examples,)`, integers, floats or strings.
        labels: True classes. Shape `(examples,)`, of the same kind as `predictions`.

    Raises:
        ValueError: An input is empty, not one-dimensional or holds NaN, the lengths differ, or
            strings are compared with numbers.
    """
    left, right = _classes(predictions, labels)
    return 100.0 * float(np.mean(left == right))


def f1_binary(predictions: ArrayLike, labels: ArrayLike, positive: int | str = 1) -> float:
    """Return the F1 score of one class, in percent; 0 if it is neither predicted nor labelled.

    Args:
        predictions: As for `accuracy`.
        labels: As for `accuracy`.
        positive: The class that is scored; 1 for MRPC and QQP of GLUE.

    Raises:
        ValueError: As `accuracy`.
    """
    left, right = _classes(predictions, labels)
    return 100.0 * _f1(left == positive, right == positive)


def f1_macro(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of the F1 scores of all classes predicted or labelled, in percent.

    Args:
        predictions: As for `accuracy`.
        labels: As for `accuracy`.

    Raises:
        ValueError: As `accuracy`.
    """
    left, right = _classes(predictions, labels)
    classes = np.union1d(left, right)
    return 100.0 * float(np.mean([_f1(left == each, right == each) for each in classes]))


def multi_label_scores(
    predictions: NDArray[np.bool_], labels: NDArray[np.bool_]
) -> dict[str, float]:
    """Return scores of sets of classes, in percent.

    Args:
        predictions: Whether each class is predicted for each example. Shape `(examples, classes)`.
        labels: Whether each example has each class. Same shape.

    Returns:
        `f1_micro`, over all classes of all examples; `f1_macro`, the mean of the F1 of all classes,
        0 for a class that is neither predicted nor labelled; `subset_accuracy`, the share of
        examples whose predicted set is equal to the labelled one.
    """
    each = [_f1(left, right) for left, right in zip(predictions.T, labels.T, strict=True)]
    return {
        "f1_micro": 100.0 * _f1(predictions, labels),
        "f1_macro": 100.0 * float(np.mean(each)),
        "subset_accuracy": 100.0 * float(np.mean((predictions == labels).all(axis=1))),
    }


def matthews(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Matthews' correlation of two or more classes times 100, -100 to 100.

    It is 0 if all predictions, or all labels, are of one class.

    Args:
        predictions: As for `accuracy`.
        labels: As for `accuracy`.

    Raises:
        ValueError: As `accuracy`.
    """
    left, right = _classes(predictions, labels)
    classes = np.union1d(left, right)
    predicted = np.array([np.sum(left == each) for each in classes], dtype=np.float64)
    labelled = np.array([np.sum(right == each) for each in classes], dtype=np.float64)
    # Covariances of the classes' indicators times the squared number of examples: exact integers.
    shared = float(np.sum(left == right)) * left.size - float(predicted @ labelled)
    spread = (left.size**2 - float(predicted @ predicted)) * (
        right.size**2 - float(labelled @ labelled)
    )
    return 0.0 if spread == 0 else 100.0 * min(1.0, max(-1.0, shared / spread**0.5))


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return Pearson's linear correlation times 100, -100 to 100, computed in float64.

    Args:
        x: Scores, finite and not all equal. Shape `(examples,)`, integers or floats.
        y: As `x`, of the same length.

    Raises:
        ValueError: An input is empty, not one-dimensional, holds NaN or infinity, or is constant
            (the correlation is undefined), or the lengths differ.
    """
    return _correlation(*_scores(x, y))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's rank correlation times 100: `pearson` of ranks, with average ranks of ties.

    Args:
        x: Scores, finite and not all equal. Shape `(examples,)`, integers or floats.
        y: As `x`, of the same length.

    Raises:
        ValueError: As `pearson`.
    """
    left, right = _scores(x, y)
    return _correlation(_average_ranks(left), _average_ranks(right))


def rmse(rows: NDArray[np.float64]) -> float:
    """Return the root of the mean squared difference of predictions and labels.

    Args:
        rows: Predictions and then labels of each example. Shape `(examples, 2 * outputs)`.
    """
    predictions, labels = np.split(rows, 2, axis=1)
    return float(np.sqrt(np.mean(np.square(predictions - labels))))


def _classes(
    predictions: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    left, right = np.asarray(predictions), np.asarray(labels)
    _check(left, right, names=("predictions", "labels"))
    if (left.dtype.kind in "US") != (right.dtype.kind in "US"):
        # They are never equal, so the metric would silently be 0.
        raise ValueError(
            "`predictions` and `labels` must both be strings or both be numbers, got "
            f"{left.dtype} and {right.dtype}. Convert one of them."
        )
    return left, right


def _f1(predicted: NDArray[np.bool_], labelled: NDArray[np.bool_]) -> float:
    """Return the harmonic mean of precision and recall, 0 to 1; 0 if nothing is true."""
    total = int(predicted.sum()) + int(labelled.sum())
    return 2 * int((predicted & labelled).sum()) / total if total else 0.0


def _scores(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left, right = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    _check(left, right, names=("x", "y"))
    for name, scores in (("x", left), ("y", right)):
        if not np.isfinite(scores).all():
            raise ValueError(
                f"`{name}` must be finite, got infinity. Find the score that overflows."
            )
        if (scores == scores[0]).all():
            raise ValueError(
                f"`{name}` must not be constant, got {scores.size} times {scores[0]}: its "
                "correlation is undefined. Use examples with different scores."
            )
    return left, right


def _check(
    left: NDArray[np.generic], right: NDArray[np.generic], *, names: tuple[str, str]
) -> None:
    for name, values in zip(names, (left, right), strict=True):
        if values.ndim != 1:
            raise ValueError(
                f"`{name}` must have shape `(examples,)`, got {values.shape}. Flatten it."
            )
        if values.size == 0:
            raise ValueError(
                f"`{name}` must not be empty, got no values. Read at least one example."
            )
        # NaN is the only value that differs from itself, in every dtype.
        if (values != values).any():
            raise ValueError(f"`{name}` must not contain NaN. Find the example that it comes from.")
    if left.size != right.size:
        raise ValueError(
            f"`{names[0]}` and `{names[1]}` must have equal lengths, got {left.size} and "
            f"{right.size}. Pass one value for each example."
        )


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    cosine = float(np.dot(_standardized(x), _standardized(y)))
    # Rounding can exceed 1 by an ulp.
    return 100.0 * min(1.0, max(-1.0, cosine))


def _standardized(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre and scale to length 1; divide by the largest first, so that no square overflows."""
    scaled = x / np.abs(x).max()
    centred = scaled - scaled.mean()
    centred = centred / np.abs(centred).max()
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred)
    return unit


def _average_ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1, and mean ranks for equal values: [5, 7, 7] → [1, 2.5, 2.5]."""
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[group]
    return ranks
