"""Documents in the order of their scores, as `rank` of sentence-transformers returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import naming
from qdqbert.runtime.inputs import check_text, check_whole, listed_texts


def check_ranking(query: Any, documents: Any, top_k: int | None) -> list[str]:
    """Check the arguments of `rank`, and return the documents.

    Raises:
        UserInputError: `query` is not a text, `documents` is not a list of texts, or `top_k` is
            below 1.
    """
    check_whole("top_k", top_k, at_least=1)
    texts = listed_texts(documents, "documents", takes_one=False)
    with naming("query"):
        check_text(query)
    return texts


def ranked(
    texts: Sequence[str],
    keys: NDArray[Any],
    scores: Sequence[Any] | NDArray[Any],
    *,
    top_k: int | None,
    return_documents: bool,
) -> list[dict[str, Any]]:
    """Return the index and the score of each document, and its text if requested, best first.

    Args:
        texts: The documents.
        keys: Numbers to sort by, the largest first. Equal ones keep their order.
        scores: Their scores.
        top_k: Number of documents to return; `None` for all.
        return_documents: Whether to return the texts.
    """
    return [
        {"corpus_id": index, "score": float(scores[index])}
        | ({"text": texts[index]} if return_documents else {})
        for index in np.argsort(-keys, kind="stable")[:top_k].tolist()
    ]
