"""Scores of texts that have a vector for each token: MaxSim.

Each vector of a query counts with its largest product with a vector of the document:

    score(query, document) = sum over i of (max over j of query[i] @ document[j])

Source: Khattab and Zaharia 2020, arXiv:2004.12832.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.data.tables.rows import Column

Vectors = NDArray[np.float32]

VECTORS_COLUMN = Column(name="embeddings", kind="vectors")
"""Column of `run` with the vectors of a text."""

# Score of a document without vectors, as in sentence-transformers.
NOTHING = np.float32(-1e9)
# Vectors of documents that a query is multiplied by at once.
_BLOCK = 1 << 14


def max_sim(
    queries: Sequence[Vectors], documents: Sequence[Vectors], *, is_mean: bool = False
) -> NDArray[np.float32]:
    """Return the scores of all pairs, float32 `(queries, documents)`.

    Each query and document is `(tokens, dimensions)`. If `is_mean`, scores are divided by the
    number of vectors of the query.
    """
    found = np.full((len(queries), len(documents)), NOTHING, np.float32)
    for chosen in _blocks(documents):
        vectors = np.concatenate([documents[each] for each in chosen]).T
        ends = np.cumsum([len(documents[each]) for each in chosen])
        starts = np.concatenate([[0], ends[:-1]])
        for index, query in enumerate(queries):
            best = np.maximum.reduceat(query @ vectors, starts, axis=1)
            found[index, chosen] = best.sum(axis=0)
    if is_mean:
        found /= np.array([[max(len(query), 1)] for query in queries], np.float32)
    return found


def _blocks(documents: Sequence[Vectors]) -> Iterator[list[int]]:
    """Yield the indices of documents that have vectors, some at a time."""
    chosen: list[int] = []
    count = 0
    for index, document in enumerate(documents):
        if not len(document):
            continue
        if chosen and count + len(document) > _BLOCK:
            yield chosen
            chosen, count = [], 0
        chosen.append(index)
        count += len(document)
    if chosen:
        yield chosen
