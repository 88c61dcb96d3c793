"""Functions shared by tasks whose answer is the class with the largest logit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.encoders.checkpoint.cross_encoder import Activation
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_choice, lower_case
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Answer, Decisions, Extremes, Outcome, Prediction, Rows, Score


def logit_predictions(results: Results) -> list[Prediction]:
    """Return the logits of each feature, `(classes,)`."""
    return list(results.outputs["logits"])


def most_likely_classes(outcome: Outcome) -> Decisions | None:
    """Return the index of the largest logit of each feature; `None` if there is only one class."""
    found = outcome.predictions
    return None if len(found[0]) == 1 else [(int(each.argmax()),) for each in found]


def accuracy_scores(outcome: Outcome, class_of: Callable[[Any], int]) -> list[Score]:
    """Return the share of examples with the largest logit at their class."""
    classes = [each.argmax() for each in outcome.predictions]
    labels = list(map(class_of, outcome.examples))
    return [score_of_pairs("accuracy", classes, labels, accuracy, extreme_classes(2))]


def apply(function: Activation, logits: NDArray[Any]) -> NDArray[Any]:
    """Return scores from logits `(..., classes)`, in their type: transformers computes in float32.

    Args:
        function: Name of the function from logits to scores.
        logits: The logits.
    """
    if function == "sigmoid":
        # Large negative logits have the score 0.
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-logits)))
    if function == "softmax":
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    return logits


def check_function(function: Activation | None, argument: str) -> Activation | None:
    """Return the name of a function; raise `UserInputError` if it is unknown."""
    named: Activation | None = lower_case(function)
    if named is not None:
        check_choice(argument, named, get_args(Activation))
    return named


def probabilities(logits: ArrayLike) -> NDArray[np.float64]:
    """Return the softmax over the last axis, in float64. Same shape."""
    return apply("softmax", np.asarray(logits, dtype=np.float64))


def class_answers(outcome: Outcome, names: Mapping[int, Any] | Sequence[Any]) -> list[Answer]:
    """Return the most likely class of each example, with its name by index."""
    answers = []
    for logits, example in zip(outcome.predictions, outcome.examples, strict=True):
        found = probabilities(logits)
        best = int(logits.argmax())
        answers.append(
            Answer(
                given=example.given,
                found={"prediction": names[best], "score": float(found[best])},
                numbers=found,
            )
        )
    return answers


def score_answers(outcome: Outcome, values: ArrayLike, name: str) -> list[Answer]:
    """Return the number that a model computes for each example, which decides nothing.

    `values` are the numbers, `(examples,)`.
    """
    numbers = np.asarray(values, dtype=np.float64)
    return [
        Answer(given=example.given, found={name: float(each)}, numbers=each)
        for each, example in zip(numbers, outcome.examples, strict=True)
    ]


def pair_answers(
    outcome: Outcome, name: str, values: Callable[[Outcome], ArrayLike]
) -> list[Answer]:
    """Return the number that an embedder has for each pair of texts, by its vectors.

    Vectors of texts alone are compared by their values, at length 1, and are no answers to read.
    """
    if len(outcome.predictions) > len(outcome.examples):
        return score_answers(outcome, values(outcome), name)
    answers = []
    for vectors, example in zip(outcome.predictions, outcome.examples, strict=True):
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True).astype(np.float64)
        numbers = vectors / np.where(lengths == 0, 1, lengths)
        answers.append(Answer(given=example.given, found={}, numbers=numbers))
    return answers


def score_of_pairs(
    name: str,
    predictions: ArrayLike,
    labels: ArrayLike,
    metric: Callable[[ArrayLike, ArrayLike, ArrayLike], NDArray[np.float64]],
    extremes: Callable[[Rows], Extremes],
) -> Score:
    """Return a metric of predictions, labels and weights; see `Score`."""
    return Score(
        name=name,
        rows=np.stack([predictions, labels], axis=1).astype(np.float64),
        compute=lambda rows, weights: metric(rows[:, 0], rows[:, 1], weights),
        extremes=extremes,
    )


def extreme_classes(classes: int) -> Callable[[Rows], Extremes]:
    """Return the extremes of rows with a predicted class and a label; see `confused_classes`."""

    def extremes(rows: Rows) -> Extremes:
        counts = np.bincount(rows[:, 1].astype(np.int64), minlength=classes)
        pairs = np.array(confused_classes(counts), dtype=np.float64)
        return pairs[:, None], pairs[:, None, [1, 1]]

    return extremes


def confused_classes(counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return pairs of a wrong class and the right one whose scores lose most by one example.

    These are the rarest classes, also among those that occur.

    Args:
        counts: Number of examples with each class, at least two classes.
    """
    order = np.argsort(counts, kind="stable")
    rare = dict.fromkeys([*order[:2].tolist(), *order[counts[order] > 0][:2].tolist()])
    return list(itertools.permutations(rare, 2))
