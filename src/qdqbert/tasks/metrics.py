"""Metrics of whole data sets, in percent as in the literature, in numpy.

All take weights of the examples, `(..., examples)`, each as if an example were there so many times,
and return a metric for each of `...`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDING = 1e-13


def accuracy(
    predictions: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the share of predictions that equal their label, in percent, 0 to 100.

    Args:
        predictions: Predicted classes. Shape `(examples,)`, integers, floats or strings.
        labels: True classes. Shape `(examples,)`, of the same kind as `predictions`.
        weights: Weights of the examples; equal ones by default.

    Raises:
        ValueError: An input is empty, not one-dimensional or holds NaN, the lengths differ, or
            strings are compared with numbers.
    """
    left, right = _classes(predictions, labels)
    return _share(left == right, _weights(weights, left))


def f1_binary(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    positive: int | str = 1,
) -> NDArray[np.float64]:
    """Return the F1 score of one class, in percent; 0 if it is neither predicted nor labelled.

    `positive` is the class that is scored; 1 for MRPC and QQP of GLUE.
    """
    left, right = (each == positive for each in _classes(predictions, labels))
    of_all = _weights(weights, left)
    return 100.0 * _f1(of_all @ (left & right), of_all @ left + of_all @ right)


def f1_macro(
    predictions: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the mean of the F1 scores of all classes predicted or labelled, in percent."""
    predicted, labelled, both = _class_weights(predictions, labels, weights)
    return np.asarray(100.0 * _f1(both, predicted + labelled).mean(axis=-1))


def multi_label_scores(
    predictions: NDArray[np.bool_], labels: NDArray[np.bool_], weights: ArrayLike | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return scores of sets of classes, in percent.

    Args:
        predictions: Whether each class is predicted for each example. Shape `(examples, classes)`.
        labels: Whether each example has each class. Same shape.
        weights: Weights of the examples; equal ones by default.

    Returns:
        `f1_micro`, over all classes of all examples; `f1_macro`, the mean of the F1 of all classes,
        0 for a class that is neither predicted nor labelled; `subset_accuracy`, the share of
        examples whose predicted set is equal to the labelled one.
    """
    of_all = _weights(weights, predictions)
    both, total = of_all @ (predictions & labels), of_all @ predictions + of_all @ labels
    is_equal = (predictions == labels).all(axis=1)
    return {
        "f1_micro": 100.0 * _f1(both.sum(axis=-1), total.sum(axis=-1)),
        "f1_macro": 100.0 * _f1(both, total).mean(axis=-1),
        "subset_accuracy": _share(is_equal, of_all),
    }


def matthews(
    predictions: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return Matthews' correlation of two or more classes times 100, -100 to 100.

    It is 0 if all predictions, or all labels, are of one class.
    """
    predicted, labelled, both = _class_weights(predictions, labels, weights)
    # Covariances of the classes' indicators times the squared number of examples: exact integers,
    # without weights.
    total = predicted.sum(axis=-1)
    shared = both.sum(axis=-1) * total - (predicted * labelled).sum(axis=-1)
    spreads = [total**2 - np.square(each).sum(axis=-1) for each in (predicted, labelled)]
    # The rest is rounding, of weights.
    is_defined = np.minimum(*spreads) > _ROUNDING * total**2
    lengths = np.sqrt(np.where(is_defined, spreads[0] * spreads[1], 1))
    return np.where(is_defined, 100.0 * (shared / lengths).clip(-1, 1), 0.0)


def pearson(x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return Pearson's linear correlation times 100, -100 to 100, computed in float64.

    Args:
        x: Scores, finite and not all equal. Shape `(examples,)`, integers or floats.
        y: As `x`, of the same length.
        weights: Weights of the examples; equal ones by default.

    Raises:
        ValueError: An input is empty, not one-dimensional, holds NaN or infinity, or is constant
            (the correlation is undefined), or the lengths differ.
    """
    left, right = _scores(x, y)
    return linear_correlation(left, right, _weights(weights, left))


def spearman(x: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return Spearman's rank correlation times 100: `pearson` of ranks, with average ranks of ties.

    Args:
        x: Scores, finite and not all equal. Shape `(examples,)`, integers or floats.
        y: As `x`, of the same length.
        weights: Weights of the examples; equal ones by default.
    """
    left, right = _scores(x, y)
    return rank_correlation(left, right, _weights(weights, left))


def rmse(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the root of the mean squared difference of predictions and labels.

    Args:
        rows: Predictions and then labels of each example. Shape `(examples, 2 * outputs)`.
        weights: Weights of the examples.
    """
    predictions, labels = np.split(rows, 2, axis=1)
    errors = np.square(predictions - labels).mean(axis=1)
    return np.asarray(np.sqrt(weights @ errors / weights.sum(axis=-1)))


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


def _weights(weights: ArrayLike | None, values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)


def _class_weights(
    predictions: ArrayLike, labels: ArrayLike, weights: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the weight of each class among predictions, among labels, and where they agree."""
    left, right = _classes(predictions, labels)
    of_all = _weights(weights, left)
    classes = np.unique(np.concatenate([left, right]))
    first, second = (np.equal.outer(each, classes) for each in (left, right))
    return of_all @ first, of_all @ second, of_all @ (first & second)


def _share(is_true: NDArray[np.bool_], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of examples of which something is true, in percent."""
    return np.asarray(100.0 * (weights @ is_true) / weights.sum(axis=-1))


def _f1(both: ArrayLike, total: ArrayLike) -> NDArray[np.float64]:
    """Return the harmonic mean of precision and recall, 0 to 1; 0 if nothing is true.

    Args:
        both: Weight of what is predicted and labelled.
        total: Weight of what is predicted, and of what is labelled, together.
    """
    found: NDArray[np.float64] = 2 * np.asarray(both) / np.where(np.equal(total, 0), 1, total)
    return found


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


def rank_correlation(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return `spearman` of scores that were checked."""
    return linear_correlation(_average_ranks(x, weights), _average_ranks(y, weights), weights)


def linear_correlation(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return `pearson` of scores that were checked."""
    cosine = (_standardized(x, weights) * _standardized(y, weights)).sum(axis=-1)
    # Rounding can exceed 1 by an ulp.
    return np.asarray(100.0 * cosine.clip(-1, 1))


def _standardized(x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centre and scale to length 1; divide by the largest first, so that no square overflows.

    The square of each is multiplied by its weight.
    """
    scaled = x / np.abs(x).max(axis=-1, keepdims=True)
    means = (weights * scaled).sum(axis=-1) / weights.sum(axis=-1)
    centred = scaled - means[..., None]
    centred = centred / np.abs(centred).max(axis=-1, keepdims=True) * np.sqrt(weights)
    unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
    return unit


def _average_ranks(x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks from 1/2, and mean ranks for equal values: [5, 7, 7] → [0.5, 2, 2]."""
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    sums = np.cumsum(weights[..., np.argsort(group, kind="stable")], axis=-1)
    ends = sums[..., np.cumsum(counts) - 1]
    # Half of the weights of a group are below its mean rank.
    ranks: NDArray[np.float64] = ends + np.roll(ends, 1, axis=-1) * (np.arange(len(counts)) > 0)
    return ranks[..., group] / 2
