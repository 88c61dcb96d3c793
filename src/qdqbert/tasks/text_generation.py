"""Causal language models, scored by how well they predict each token from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.runtime.batches import Results
from qdqbert.tasks.task import Features, Labels, Prediction, Tokenization
from qdqbert.tasks.texts import encode_texts
from qdqbert.tasks.tokens import keep_examples, score_tokens, token_task


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


def _true_ids(features: Features) -> list[NDArray[np.int32]]:
    """Return the ids that are predicted for each feature."""
    return [each["input_ids"][1:] for each in features.encoded.inputs]


def _labels(features: Features, _: Mapping[int, str]) -> list[Labels]:
    """Return the ids; transformers compares each with the prediction of the position before it."""
    return [{"labels": each["input_ids"].astype(np.int64)} for each in features.encoded.inputs]


TEXT_GENERATION = token_task(
    "text-generation", _true_ids, encode=_encode, predictions=_predictions, labels=_labels
)
