"""Causal language models, scored by how well they predict each token from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.data.rows.data import read_dataset
from qdqbert.runtime.batches import Results
from qdqbert.tasks.task import (
    Answer,
    Features,
    Labels,
    Outcome,
    Prediction,
    Score,
    Task,
    Tokenization,
    accept_all,
)
from qdqbert.tasks.texts import encode_texts
from qdqbert.tasks.tokens import (
    keep_examples,
    log_probabilities,
    most_likely_tokens,
    score_tokens,
    token_answers,
    token_scores,
)


def _encode(examples: Sequence[Any], how: Tokenization) -> Features:
    """Make one feature of each text, cut at `max_length`."""
    features = encode_texts(examples, how)
    keep = [length > 1 for length in features.encoded.lengths]
    return keep_examples(features, keep, why="with a single token, so nothing to predict")


def _predictions(results: Results) -> list[Prediction]:
    """Score every token but the first. Special tokens are predicted too, as in run_clm."""
    return [
        score_tokens(logits[:-1], feature["input_ids"][1:])
        for logits, feature in zip(results.rows("logits"), results.features, strict=True)
    ]


def _scores(outcome: Outcome) -> list[Score]:
    return token_scores(outcome.predictions, _true_ids(outcome.features))


def _true_ids(features: Features) -> list[NDArray[np.int32]]:
    """Return the ids that are predicted for each feature."""
    return [each["input_ids"][1:] for each in features.encoded.inputs]


def _answers(outcome: Outcome) -> list[Answer]:
    return token_answers(outcome, _true_ids(outcome.features))


def _labels(features: Features, _: Mapping[int, str]) -> list[Labels]:
    """Return the ids; transformers compares each with the prediction of the position before it."""
    return [{"labels": each["input_ids"].astype(np.int64)} for each in features.encoded.inputs]


TEXT_GENERATION = Task(
    name="text-generation",
    read=read_dataset,
    encode=_encode,
    check_labels=accept_all,
    leaves_out_unlabeled=False,
    predictions=_predictions,
    scores=_scores,
    decided="token",
    decisions=most_likely_tokens,
    labels=_labels,
    answers=_answers,
    signal=log_probabilities,
)
