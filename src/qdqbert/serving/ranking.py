"""Sort texts by how well they answer a query, for the protocols that do so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.service import Answers, Served
from qdqbert.tasks.logits import apply
from qdqbert.tasks.multi_vector_embedding import MultiVectorEmbedder
from qdqbert.tasks.regression import Regressor


async def rank_logits(
    served: Served,
    query: str,
    texts: Sequence[str],
    prompts: Mapping[str, str | None],
    **cutting: Any,
) -> tuple[Answers, NDArray[np.float32]]:
    """Return the answers of a model about texts, and their logits or MaxSim, `(texts,)`.

    `prompts` has `prompt_name` and `prompt` of `Reranker.predict`.

    Raises:
        BadRequestError: There is a prompt, and the model has one of its own for each kind of text.
    """
    if isinstance(served.model, MultiVectorEmbedder):
        if any(each is not None for each in prompts.values()):
            raise BadRequestError("This model takes no prompt: leave it out.")
        return await _rank_vectors(served, served.model, query, texts, **cutting)
    # Scores of large logits round to the same number.
    pairs = [(query, text) for text in texts]
    found = await served.run("scoring_job", {"activation": "none", **prompts}, pairs, **cutting)
    return found, np.array([each[0] for each in found.each])


async def _rank_vectors(
    served: Served, model: MultiVectorEmbedder, query: str, texts: Sequence[str], **cutting: Any
) -> tuple[Answers, NDArray[np.float32]]:
    one = await served.run("job_of_kind", {"task": "query"}, [query], **cutting)
    found = await served.run("job_of_kind", {"task": "document"}, texts, **cutting)
    # It takes a while, and other requests are answered in the meantime.
    scores = await asyncio.to_thread(model.similarity, one.each, found.each)
    every = Answers(
        each=found.each, tokens=one.tokens + found.tokens, truncated=one.truncated + found.truncated
    )
    return every, scores[0]


def scores_of(
    served: Served, logits: NDArray[np.float32], *, is_raw: bool = False
) -> NDArray[np.float32]:
    """Return the scores of texts: sigmoids of logits, unless `is_raw`.

    MaxSim and the numbers of a regression are scores as they are.
    """
    keeps = is_raw or isinstance(served.model, MultiVectorEmbedder | Regressor)
    return apply("none" if keeps else "sigmoid", logits)


def best_first(logits: NDArray[np.float32]) -> list[int]:
    """Return the indices of logits, the largest one first."""
    order: list[int] = np.argsort(-logits, kind="stable").tolist()
    return order
