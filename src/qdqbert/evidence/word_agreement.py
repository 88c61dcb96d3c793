"""How well sparse embeddings agree with the float model's on which words have a weight."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.evidence.vector_recall import neighbor_recall

_TOP = 10

Weights = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordAgreement:
    """Agreement of sparse embeddings with the float model's, over texts.

    Attributes:
        top: Number of words with the largest weights that are compared.
        overlap_percent: Mean share of these words of the float model that the other model has
            among its own, %. Texts without a weight do not count.
        active: Mean number of words with a weight.
        float_active: The same of the float model.
        recall_percent: Recall@10, by products of embeddings: the mean share of the 10 nearest other
            texts of the float model that are among the 10 nearest of the other one, %. `None` for
            fewer than 50 texts.
    """

    top: int
    overlap_percent: float
    active: float
    float_active: float
    recall_percent: float | None


def word_agreement(reference: Sequence[Weights], candidate: Sequence[Weights]) -> WordAgreement:
    """Compare sparse embeddings of the same texts.

    Args:
        reference: Embeddings of the float model, each `(words,)`.
        candidate: Embeddings of another model.
    """
    tops = [(_largest(a), _largest(b)) for a, b in zip(reference, candidate, strict=True)]
    shares = [len(wanted & found) / len(wanted) for wanted, found in tops if wanted]
    float_active, active = (
        float(np.mean([np.count_nonzero(each) for each in side])) for side in (reference, candidate)
    )
    return WordAgreement(
        top=_TOP,
        overlap_percent=100 * float(np.mean(shares)) if shares else 100.0,
        active=active,
        float_active=float_active,
        recall_percent=neighbor_recall(reference, candidate),
    )


def _largest(weights: Weights) -> set[int]:
    """Return the words with the largest weights."""
    kept = np.flatnonzero(weights)
    order = np.argsort(-weights[kept], kind="stable")[:_TOP]
    return set(kept[order].tolist())
