"""Embeddings: scored by how well the cosine of two texts follows a person's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch, encode
from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Example
from qdqbert.tasks.scores import correlations
from qdqbert.tasks.task import Features, Labels, Metric, Prediction, Predictions, Task, TaskOptions
from qdqbert.tasks.texts import cut_notice, read_texts


def _encode(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """First texts, then second ones: each text is embedded alone."""
    del options
    seconds = [example.text_pair for example in examples if example.text_pair is not None]
    texts = [example.text for example in examples] + seconds
    encoded = encode(tokenizer, texts, input_names=input_names, max_length=max_length)
    return Features(
        examples=tuple(examples),
        encoded=encoded,
        notices=cut_notice(encoded.truncated, len(texts), max_length),
    )


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    """The sentence embedding; of a plain encoder, the mean of its token states."""
    del features
    if "sentence_embedding" in outputs:
        return list(outputs["sentence_embedding"])
    mask = batch.inputs["attention_mask"][..., None].astype(np.float32)
    return list((outputs["last_hidden_state"] * mask).sum(axis=1) / mask.sum(axis=1))


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    """Spearman and Pearson correlation of cosine and score, x 100, as STS benchmarks report."""
    del id2label, options
    _check_pairs(features)
    examples = features.examples
    stacked = np.stack(rows).astype(np.float64)
    first, second = stacked[: len(examples)], stacked[len(examples) :]
    cosines = (first * second).sum(axis=1) / (
        np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    )
    return correlations(cosines, examples)


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """None: an embedder is trained on pairs of rows, or to follow a teacher."""
    del id2label
    return [{} for _ in features.encoded.rows]


def _check_pairs(features: Features) -> None:
    if any(example.text_pair is None for example in features.examples):
        raise DataFileError(
            "Embeddings are scored on pairs of texts with a score; the data has one text a row. "
            "Name the second with `--text-pair-column`."
        )


FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    read=read_texts,
    encode=_encode,
    rows=_rows,
    metrics=_metrics,
    decisions=lambda rows, features, options: None,
    labels=_labels,
    is_embedding=True,
)
