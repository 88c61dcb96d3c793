"""Embeddings: scored by how well the cosine of two texts follows a person's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Example
from qdqbert.tasks.scores import correlations
from qdqbert.tasks.task import Metric, Rows, Task


def _texts(examples: Sequence[Example]) -> tuple[list[str], None]:
    """First texts, then second ones: each text is embedded alone."""
    seconds = [example.text_pair for example in examples if example.text_pair is not None]
    return [example.text for example in examples] + seconds, None


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], inputs: Mapping[str, NDArray[np.int64]]
) -> Rows:
    """The sentence embedding; of a plain encoder, the mean of its token states."""
    if "sentence_embedding" in outputs:
        return outputs["sentence_embedding"]
    mask = inputs["attention_mask"][..., None].astype(np.float32)
    mean: Rows = (outputs["last_hidden_state"] * mask).sum(axis=1) / mask.sum(axis=1)
    return mean


def _metrics(rows: Rows, examples: Sequence[Example], id2label: Mapping[int, str]) -> list[Metric]:
    """Spearman and Pearson correlation of cosine and score, x 100, as STS benchmarks report."""
    del id2label
    if any(example.text_pair is None for example in examples):
        raise DataFileError(
            "Embeddings are scored on pairs of texts with a score; the data has one text a row. "
            "Name the second with `--text-pair-column`."
        )
    first, second = rows[: len(examples)].astype(np.float64), rows[len(examples) :]
    cosines = (first * second).sum(axis=1) / (
        np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    )
    return correlations(cosines, examples)


FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    texts=_texts,
    rows=_rows,
    metrics=_metrics,
    kind=lambda rows: "embedding",
)
