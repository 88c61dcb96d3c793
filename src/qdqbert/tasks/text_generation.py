"""Causal language models: how well they guess each token of a text from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch
from qdqbert.tasks.task import Features, Labels, Metric, Prediction, Predictions, Task, TaskOptions
from qdqbert.tasks.texts import encode_together, read_texts
from qdqbert.tasks.tokens import (
    keep_rows,
    likeliest,
    log_probabilities,
    score_tokens,
    token_metrics,
)


def _encode(
    examples: Sequence[Any],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """One row a text, cut at `max_length`."""
    features = encode_together(
        examples, tokenizer, input_names=input_names, max_length=max_length, options=options
    )
    keep = [length > 1 for length in features.encoded.lengths]
    return keep_rows(features, keep, "have one token only, so none to guess")


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    """For every token but the first; special ones are guessed too, as run_clm does."""
    ids = [features.encoded.rows[index]["input_ids"] for index in batch.indices]
    return [
        score_tokens(logits[: len(own) - 1], own[1:])
        for logits, own in zip(outputs["logits"], ids, strict=True)
    ]


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    del id2label, options
    return token_metrics(rows, [row["input_ids"][1:] for row in features.encoded.rows])


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """The ids themselves: transformers compares each with what was said one token before."""
    del id2label
    return [{"labels": row["input_ids"].astype(np.int64)} for row in features.encoded.rows]


TEXT_GENERATION = Task(
    name="text-generation",
    read=read_texts,
    encode=_encode,
    rows=_rows,
    metrics=_metrics,
    decisions=likeliest,
    labels=_labels,
    signal=log_probabilities,
)
