"""Sort texts by how well they answer a query, for the protocols that do so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.serving.batcher import Answered
from qdqbert.serving.service import Served


async def rank_logits(
    served: Served, query: str, texts: Sequence[str], **cutting: Any
) -> tuple[list[Answered], NDArray[np.float32]]:
    """Return the answers of a reranker about texts, and the logits in them, `(texts,)`."""
    # Scores of large logits round to the same number.
    pairs = [(query, text) for text in texts]
    found = await served.run("scoring_job", {"activation": "none"}, pairs, **cutting)
    return found, np.array([each.answer[0] for each in found])


def best_first(logits: NDArray[np.float32]) -> list[int]:
    """Return the indices of logits, the largest one first."""
    order: list[int] = np.argsort(-logits, kind="stable").tolist()
    return order
