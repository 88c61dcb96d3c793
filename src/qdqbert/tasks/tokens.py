"""Functions shared by tasks that predict tokens.

Instead of logits over a whole vocabulary, a prediction is `(tokens, 2)`: for each predicted token
the log-probability of the true one, and the id of the most likely one. Ids are exact in float32 up
to 2^24, which is larger than any vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import read_dataset
from qdqbert.data.rows.lines import counted
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Extremes,
    Features,
    Outcome,
    Prediction,
    Predictions,
    Rows,
    Score,
    Task,
    accept_all,
    drawn_by_size,
    one_kind,
    share_score,
)


def score_tokens(logits: NDArray[np.float32], ids: NDArray[np.int32]) -> Prediction:
    """Return the log-probability of the true tokens, and the ids of the most likely ones.

    `logits` are `(tokens, vocab)`, and `ids` of the true tokens `(tokens,)`.

    Returns:
        Shape `(tokens, 2)`. Log-softmax is computed in float64.
    """
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    true = exact[np.arange(len(ids)), ids] - np.log(np.exp(exact).sum(axis=1))
    return np.stack([true, logits.argmax(axis=1)], axis=1).astype(np.float32)


def log_probabilities(prediction: Prediction) -> Prediction:
    """Return the log-probabilities, without the ids, which are not a quantity."""
    return prediction[:, :1]


def most_likely_tokens(outcome: Outcome) -> Decisions | None:
    """Return the id of the most likely token, for every predicted token of every feature."""
    return [tuple(map(int, each[:, 1])) for each in outcome.predictions]


def token_scores(predictions: Predictions, ids: Sequence[NDArray[np.int32]]) -> list[Score]:
    """Return perplexity and accuracy over all predicted tokens of all texts.

    `predictions` are results of `score_tokens`, and `ids` those of the true tokens of each feature.
    """
    exact = [each.astype(np.float64) for each in predictions]
    tokens = [len(each) for each in exact]
    logs = np.array([[each[:, 0].sum(), len(each)] for each in exact])
    right = [(each[:, 1] == own).sum() for each, own in zip(exact, ids, strict=True)]
    return [
        Score(name="perplexity", rows=logs, compute=_perplexity, extremes=_extremes, is_error=True),
        share_score("accuracy", right, tokens),
    ]


def _perplexity(rows: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the perplexity of sums of log-probabilities and numbers of tokens."""
    logs, tokens = (weights @ rows).T
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(-logs / tokens))


def _extremes(rows: Rows) -> Extremes:
    """Give the tokens of a text the probability 1, and that of the worst text.

    It is at most one half: another token is likelier where a prediction changes.
    """
    tokens = drawn_by_size(rows[:, 1])
    worst = min(float((rows[:, 0] / rows[:, 1]).min()), -math.log(2))
    return one_kind(np.zeros_like(tokens), tokens), one_kind(tokens * worst, tokens)


def token_answers(outcome: Outcome, ids: Sequence[NDArray[np.int32]]) -> list[Answer]:
    """Return the most likely token at each predicted place, and the probability of the true one.

    Args:
        outcome: Results of `score_tokens`, with a feature for each example.
        ids: Ids of the true tokens of each feature.
    """
    tokenizer = outcome.tokenizer
    assert tokenizer is not None, "answers have tokens"
    answers = []
    for prediction, example, own in zip(outcome.predictions, outcome.examples, ids, strict=True):
        found = np.exp(prediction[:, 0].astype(np.float64))
        chosen = prediction[:, 1].astype(np.int64).tolist()
        answers.append(
            Answer(
                given={**example.given, "labels": tokenizer.tokens(own.tolist())},
                found={
                    "prediction": tokenizer.tokens(chosen),
                    "label_scores": found.tolist(),
                },
                numbers=found,
            )
        )
    return answers


def token_task(
    name: str, true_ids: Callable[[Features], Sequence[NDArray[np.int32]]], **fields: Any
) -> Task:
    """Return a task that predicts tokens of texts.

    `true_ids` returns the ids that are predicted for each feature. `fields` are further fields of
    the task.
    """
    return Task(
        name=name,
        read=read_dataset,
        check_labels=accept_all,
        leaves_out_unlabeled=False,
        scores=lambda outcome: token_scores(outcome.predictions, true_ids(outcome.features)),
        decided="token",
        decisions=most_likely_tokens,
        answers=lambda outcome: token_answers(outcome, true_ids(outcome.features)),
        signal=log_probabilities,
        **fields,
    )


def keep_examples(features: Features, keep: Sequence[bool], *, why: str) -> Features:
    """Leave out examples that have nothing to predict, and add a notice about them.

    `why` is the fault of the rest: "without a token to mask".
    """
    if all(keep):
        return features
    if not any(keep):
        raise DataFileError(
            f"No text can be used: {counted(len(keep), 'text')} {why}. Name other data."
        )
    kept = [index for index, is_kept in enumerate(keep) if is_kept]
    encoded = features.encoded
    left_out = len(keep) - len(kept)
    return dataclasses.replace(
        features,
        examples=tuple(features.examples[index] for index in kept),
        encoded=Encoded(
            inputs=tuple(encoded.inputs[index] for index in kept),
            padding=encoded.padding,
            truncated=encoded.truncated,
        ),
        notices=(*features.notices, f"Left out {left_out} of {len(keep)} texts: {why}."),
    )
