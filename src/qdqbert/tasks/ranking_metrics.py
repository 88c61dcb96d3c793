"""Metrics of ranked documents, for one query each, 0 to 1.

Documents with equal scores are ranked from the least relevant to the most relevant one, so that a
model gains nothing by equal scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Relevance = NDArray[np.float64]


def rank(scores: ArrayLike, relevance: ArrayLike) -> Relevance:
    """Return the relevance of documents, sorted by score, highest first. Shape `(documents,)`.

    Scores and relevance are `(documents,)`; relevant documents have a relevance above 0.
    """
    gains = np.asarray(relevance, dtype=np.float64)
    order = np.lexsort((gains, -np.asarray(scores, dtype=np.float64)))
    return gains[order]


def reciprocal_rank(ranked: Relevance) -> float:
    """Return 1 over the rank of the first relevant document, counted from 1; 0 if there is none."""
    found = np.flatnonzero(ranked > 0)
    return 1 / (int(found[0]) + 1) if len(found) else 0.0


def average_precision(ranked: Relevance) -> float:
    """Return the mean of the precisions at the ranks of all relevant documents; 0 without any."""
    ranks = np.flatnonzero(ranked > 0) + 1
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else 0.0


def ndcg(ranked: Relevance, *, k: int) -> float:
    """Return the discounted cumulative gain of the first `k` documents over the best order's.

    The gain of a document is its relevance, or 0 if that is negative. It is divided by
    `log2(rank + 1)`, for ranks from 1. The result is 0 if no document is relevant.

    Source: Järvelin and Kekäläinen 2002, doi:10.1145/582415.582418; gains as in trec_eval.
    """
    gains = np.maximum(ranked, 0)
    discounts = 1 / np.log2(np.arange(2, min(k, len(gains)) + 2))
    best = float(np.sort(gains)[::-1][:k] @ discounts)
    return float(gains[:k] @ discounts) / best if best else 0.0


def auc(scores: ArrayLike, labels: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """Return the area under the ROC curve: how often a relevant pair has the higher score.

    Pairs with equal scores count half.

    Args:
        scores: Scores of a model. Shape `(pairs,)`.
        labels: Whether each pair is relevant. Same shape; both kinds have to occur.
        weights: Weights of the pairs, `(..., pairs)`. The result is `(...,)`.
    """
    values, is_relevant = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.bool_)
    of_all = np.asarray(weights, dtype=np.float64)
    order = np.argsort(values[~is_relevant])
    rest, weights_of_rest = values[~is_relevant][order], of_all[..., ~is_relevant][..., order]
    start = np.zeros((*of_all.shape[:-1], 1))
    below = np.concatenate([start, np.cumsum(weights_of_rest, axis=-1)], axis=-1)
    left, right = (
        below[..., np.searchsorted(rest, values[is_relevant], side=side)]
        for side in ("left", "right")
    )
    relevant = of_all[..., is_relevant]
    found = (relevant * (left + right)).sum(axis=-1)
    return np.asarray(found / (2 * relevant.sum(axis=-1) * below[..., -1]))
