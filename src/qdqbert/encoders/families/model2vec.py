"""Static embeddings: the mean of a vector for each token, whatever stands around it.

Read are the folders of model2vec (potion), and `StaticEmbedding` of sentence-transformers, which
computes the same. Special tokens are not added.

Source: `StaticEmbedding` of sentence-transformers 6.2. model2vec's own class also leaves out
unknown tokens, and cuts texts.
"""

from __future__ import annotations

import numpy as np

from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.model import Embeddings, Head, HeadOutput, Table
from qdqbert.encoders.reader import Reader

# Longer texts are cut, of which sentence-transformers reads all.
_LIMIT = 2**16


def read_static(reader: Reader) -> Encoder:
    """Read a table with a row for each token."""
    weights = reader.weights
    if reader.has("embedding.weight"):
        rows = reader.tensor("embedding.weight", (None, None))
        return _encoder(rows)
    # Rows may be few: then tokens share them, and each has a factor of its own.
    codes = weights.read_integers("embeddings")
    rows = reader.tensor("embeddings", (None, None)) if codes is None else codes
    mapping = weights.read_integers("mapping")
    if mapping is not None:
        outside = (mapping < 0) | (mapping >= len(rows))
        if mapping.ndim != 1 or outside.any():
            raise reader.config.refuse(
                "vocabulary_quantization", "`mapping` names rows that `embeddings` lacks."
            )
        rows = rows[mapping.astype(np.int64)]
    rows = np.asarray(rows, np.float32)
    if reader.has("weights"):
        rows = rows * reader.tensor("weights", (len(rows),))[:, None]
    return _encoder(rows)


def _encoder(rows: np.ndarray) -> Encoder:
    words = Table(rows=np.asarray(rows, np.float32), module="embedding")
    return Encoder(embeddings=Embeddings(words=words), layers=(), limit=_LIMIT)


def embed_static(parts: Parts) -> tuple[Head, ...]:
    """Return the head: the mean of the rows."""
    del parts
    return (Head(poolings=("mean",), steps=(), outputs=(HeadOutput(name=EMBEDDING),)),)


MODEL2VEC = Family(
    model_type="model2vec",
    prefix="embedding_model",
    encoder=read_static,
    embedding=embed_static,
    first="embeddings",
    # `load` alone reads them.
    is_quantized=False,
    defaults={},
)
