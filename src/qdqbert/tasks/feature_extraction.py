"""Embeddings, scored by how well the cosine of two texts agrees with human scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import encode
from qdqbert.errors import DataFileError
from qdqbert.runtime.batches import Results
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.data import Dataset, Example, check_each, read_dataset
from qdqbert.tasks.logits import score_answers
from qdqbert.tasks.pooling import sentence_vectors
from qdqbert.tasks.scores import check_scores_differ, correlations, score_of
from qdqbert.tasks.task import Answer, Features, Labels, Prediction, Predictions, Score, Task
from qdqbert.tasks.texts import check_label_column, truncation_notice
from qdqbert.tokenizing.tokenizer import Tokenizer


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    del id2label
    if dataset.examples[0].text_pair is None:
        raise DataFileError(
            f"The data `{dataset.path}` have one text per row; embeddings are scored on pairs of "
            "texts with a score. Name the second text with `text_pair_column`.",
            argument="text_pair_column",
        )
    check_label_column(dataset)
    check_each(dataset, score_of)


def _encode(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskSettings,
) -> Features:
    """Make a feature of each text: of all first texts, then of all second ones."""
    del options
    seconds = [example.text_pair for example in examples if example.text_pair is not None]
    texts = [example.text for example in examples] + seconds
    encoded = encode(tokenizer, texts, input_names=input_names, max_length=max_length)
    return Features(
        examples=tuple(examples),
        encoded=encoded,
        notices=truncation_notice(encoded.truncated, len(texts), max_length),
    )


def _predictions(results: Results) -> list[Prediction]:
    return list(sentence_vectors(results))


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Score]:
    """Return the correlations of cosine and score, x 100, as in STS benchmarks."""
    del id2label, options
    return correlations(_cosines(predictions, features), features.examples)


def _cosines(predictions: Predictions, features: Features) -> NDArray[np.float64]:
    """Return the cosine of both texts of each example."""
    stacked = np.stack(predictions).astype(np.float64)
    count = len(features.examples)
    first, second = stacked[:count], stacked[count:]
    cosines: NDArray[np.float64] = (first * second).sum(axis=1) / (
        np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    )
    return cosines


def _answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Answer]:
    del tokenizer, id2label, options
    given = [example.given for example in features.examples]
    return score_answers(_cosines(predictions, features), given, "cosine")


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """Return the score of each pair, scaled to 0 to 1 if it is not in that range."""
    del id2label
    scores = [score_of(example) for example in features.examples]
    low, high = min(0.0, *scores), max(1.0, *scores)
    return [{"scores": (score - low) / (high - low)} for score in scores]


FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    read=read_dataset,
    encode=_encode,
    check_labels=_check_labels,
    check_metrics=lambda dataset, id2label: check_scores_differ(dataset),
    predictions=_predictions,
    scores=_scores,
    decisions=lambda predictions, features, options: None,
    labels=_labels,
    answers=_answers,
    is_embedding=True,
)
