"""What tasks that guess tokens share. Of logits over a whole vocabulary, two numbers are kept.

A row is `(tokens, 2)`: for each guessed token the log-probability of the true one, and the id of
the likeliest. Ids are exact in float32 up to 2^24, which is more than any vocabulary has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Encoded
from qdqbert.errors import DataFileError
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Features, Metric, Prediction, Predictions, TaskOptions


def score_tokens(logits: NDArray[np.float32], ids: NDArray[np.int32]) -> Prediction:
    """Log-probability of the true tokens, and ids of the likeliest.

    Args:
        logits: `(tokens, vocab)`.
        ids: The true tokens. Shape `(tokens,)`.

    Returns:
        `(tokens, 2)`. Log-softmax is taken in float64.
    """
    exact = logits.astype(np.float64)
    exact -= exact.max(axis=1, keepdims=True)
    true = exact[np.arange(len(ids)), ids] - np.log(np.exp(exact).sum(axis=1))
    return np.stack([true, logits.argmax(axis=1)], axis=1).astype(np.float32)


def log_probabilities(row: Prediction) -> Prediction:
    """The part of a row that is a measure: ids are names."""
    return row[:, :1]


def likeliest(
    rows: Predictions, features: Features, options: TaskOptions
) -> Sequence[Hashable] | None:
    """The id that the model would fill in, of every guessed token of every row."""
    del features, options
    return [int(token) for row in rows for token in row[:, 1]]


def token_metrics(rows: Predictions, ids: Sequence[NDArray[np.int32]]) -> list[Metric]:
    """Perplexity and accuracy over all guessed tokens of all texts.

    Args:
        rows: Of `score_tokens`.
        ids: The true tokens of each row.
    """
    stacked = np.concatenate(rows).astype(np.float64)
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(-stacked[:, 0].mean()))
    right = accuracy(stacked[:, 1].astype(np.int64), np.concatenate(ids))
    return [
        Metric(name="perplexity", value=perplexity, examples=len(rows), is_error=True),
        Metric(name="accuracy", value=right, examples=len(rows)),
    ]


def keep_rows(features: Features, keep: Sequence[bool], why: str) -> Features:
    """Leaves out examples whose row has nothing to guess, and tells it.

    Args:
        features: One row an example.
        keep: Whether to keep it, for each row.
        why: What is wrong with the others: "have no token to mask".

    Raises:
        DataFileError: None is left.
    """
    if all(keep):
        return features
    if not any(keep):
        raise DataFileError(f"All {len(keep)} texts {why}. Name other data.")
    kept = [index for index, is_kept in enumerate(keep) if is_kept]
    encoded = features.encoded
    left_out = len(keep) - len(kept)
    return dataclasses.replace(
        features,
        examples=tuple(features.examples[index] for index in kept),
        encoded=Encoded(
            rows=tuple(encoded.rows[index] for index in kept),
            padding=encoded.padding,
            truncated=encoded.truncated,
        ),
        notices=(*features.notices, f"{left_out} of {len(keep)} texts {why}: left out."),
    )
