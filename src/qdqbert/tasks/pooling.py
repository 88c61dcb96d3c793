"""One vector of the outputs of an embedder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def sentence_vectors(
    outputs: Mapping[str, NDArray[np.float32]], attention_mask: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the sentence embeddings or, for a plain encoder, the mean of the token states.

    Args:
        outputs: Outputs of the graph by name.
        attention_mask: 1 for tokens, 0 for padding. Shape `(batch, tokens)`.

    Returns:
        Shape `(batch, hidden)`.
    """
    if "sentence_embedding" in outputs:
        return outputs["sentence_embedding"]
    mask = attention_mask[..., None].astype(np.float32)
    sums = (outputs["last_hidden_state"] * mask).sum(axis=1)
    means: NDArray[np.float32] = sums / mask.sum(axis=1)
    return means
