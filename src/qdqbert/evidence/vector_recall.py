"""How well small vectors find the texts that the float model's embeddings find."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.tasks.max_sim import max_sim
from qdqbert.tasks.small_vectors import VectorRanges, Vectors, quantize_vectors, shared_limits

# With fewer texts, most of them are among the nearest ones anyway.
_FEWEST_TEXTS = 50
_MOST_TEXTS = 1000
# MaxSim multiplies all pairs of tokens.
_MOST_TOKENS = 20_000
_NEIGHBORS = 10

Scores = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorRecall:
    """Recall@10 of each kind of vectors of a model, on held-out texts.

    Each text is a query. Recall is the mean share of the 10 nearest other texts, by the cosine of
    the float model's embeddings, that are among the 10 nearest by vectors of a kind, in %.

    Attributes:
        texts: Number of texts.
        dimensions: Number of dimensions of an embedding.
        float32: Recall of float32 vectors, by cosine.
        int8: Recall of int8 codes, by the cosine of the codes.
        int8_per_dimension: Recall of int8 codes with a range for each dimension, by the cosine of
            the codes.
        int8_restored: Recall of the values that these codes stand for, by cosine.
        binary: Recall of bits, by the number of bits that differ.
    """

    texts: int
    dimensions: int
    float32: float
    int8: float
    int8_per_dimension: float
    int8_restored: float
    binary: float


def vector_recall(
    reference: Sequence[Vectors], candidate: Sequence[Vectors], ranges: VectorRanges
) -> VectorRecall | None:
    """Return the recall of the vectors of a model; `None` for fewer than 50 texts.

    Args:
        reference: Embeddings of the float model, each `(dimensions,)`. At most 1,000 are used.
        candidate: Embeddings of the same texts by the model.
        ranges: Ranges of the codes.
    """
    if len(reference) < _FEWEST_TEXTS:
        return None
    wanted, vectors = (np.stack(each[:_MOST_TEXTS]) for each in (reference, candidate))
    nearest = _nearest(_cosines(wanted))
    limits = ranges.limits(None, is_scaled=False)
    codes = quantize_vectors(vectors, "int8", limits).astype(np.float32)
    shared = quantize_vectors(vectors, "int8", shared_limits(limits))
    low, high = limits
    restored = low + (codes + np.float32(128.5)) * ((high - low) / 255)
    signs = np.where(vectors > 0, np.float32(1), np.float32(-1))
    scores = {
        "float32": _cosines(vectors),
        "int8": _cosines(shared.astype(np.float32)),
        "int8_per_dimension": _cosines(codes),
        "int8_restored": _cosines(restored),
        # The more bits are the same, the larger.
        "binary": signs @ signs.T,
    }
    found = {name: _recall(nearest, _nearest(each)) for name, each in scores.items()}
    return VectorRecall(texts=len(vectors), dimensions=vectors.shape[1], **found)


def neighbor_recall(reference: Sequence[Vectors], candidate: Sequence[Vectors]) -> float | None:
    """Return the recall@10 of vectors by their products, in %; `None` for fewer than 50 texts.

    Args:
        reference: Vectors of the float model, each `(dimensions,)`. At most 1,000 are used.
        candidate: Vectors of the same texts by another model.
    """
    if len(reference) < _FEWEST_TEXTS:
        return None
    stacked = (np.stack(each[:_MOST_TEXTS]) for each in (reference, candidate))
    wanted, found = (_nearest(each @ each.T) for each in stacked)
    return _recall(wanted, found)


def max_sim_recall(reference: Sequence[Vectors], candidate: Sequence[Vectors]) -> float | None:
    """Return the recall@10 of vectors of tokens by MaxSim, in %; `None` for fewer than 50 texts.

    It is the mean share of the 10 nearest other texts of the float model that are among the 10
    nearest of the other one. Each text is a query, with all of its tokens.

    Args:
        reference: Vectors of the float model, `(tokens, dimensions)` each. At most 1,000 texts are
            used, and as many as have 20,000 tokens.
        candidate: Vectors of the same texts by another model.
    """
    ends = np.cumsum([len(each) for each in reference[:_MOST_TEXTS]])
    count = max(int((ends <= _MOST_TOKENS).sum()), _FEWEST_TEXTS)
    if len(reference) < count:
        return None
    sides = (each[:count] for each in (reference, candidate))
    wanted, found = (_nearest(max_sim(each, each)) for each in sides)
    return _recall(wanted, found)


def _cosines(vectors: Vectors) -> Scores:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled = vectors / np.maximum(lengths, np.float32(1e-12))
    return np.asarray(scaled @ scaled.T)


def _nearest(scores: Scores) -> NDArray[np.bool_]:
    """Return which texts `(texts, texts)` are the nearest ones of each text, without itself."""
    others = scores.copy()
    np.fill_diagonal(others, -np.inf)
    order = np.argsort(-others, axis=1, kind="stable")[:, :_NEIGHBORS]
    found = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(found, order, True, axis=1)
    return found


def _recall(wanted: NDArray[np.bool_], found: NDArray[np.bool_]) -> float:
    return float(100 * (wanted & found).sum() / wanted.sum())
