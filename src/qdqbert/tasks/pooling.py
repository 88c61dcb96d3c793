"""One vector of the outputs of an embedder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qdqbert.runtime.batches import Results


def sentence_vectors(results: Results) -> NDArray[np.float32]:
    """Return the sentence embeddings or, for a plain encoder, the mean of the token states.

    Returns:
        Shape `(batch, hidden)`.
    """
    if "sentence_embedding" in results.outputs:
        return results.outputs["sentence_embedding"]
    mask = results.inputs["attention_mask"][..., None].astype(np.float32)
    sums = (results.outputs["last_hidden_state"] * mask).sum(axis=1)
    means: NDArray[np.float32] = sums / mask.sum(axis=1)
    return means
