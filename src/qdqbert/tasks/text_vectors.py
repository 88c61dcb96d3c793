"""All that BGE-M3 makes of a text in one pass: an embedding, weights of words, vectors of tokens.

Results are those of `M3Embedder` of FlagEmbedding.

Source: Chen et al. 2024, arXiv:2402.03216; inference/embedder/encoder_only/m3.py of FlagEmbedding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.choices import VECTOR_KINDS, VectorKind
from qdqbert.common.errors import UserInputError
from qdqbert.data.tables.rows import Column
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.heads import EMBEDDING, TOKEN_VECTORS, TOKEN_WEIGHTS
from qdqbert.runtime.batches import Results
from qdqbert.tasks.embedding_jobs import Embed, Embedding, SmallEmbedding, scaled, sentence_vectors
from qdqbert.tasks.max_sim import VECTORS_COLUMN
from qdqbert.tasks.sparse_vectors import SPARSE_COLUMNS, Floats, SparseVector, largest_weights

OUTPUTS: Mapping[VectorKind, str] = {
    "dense": EMBEDDING,
    "sparse": TOKEN_WEIGHTS,
    "colbert": TOKEN_VECTORS,
}
"""The output of a model that each kind is made of."""

# Names in the result of FlagEmbedding.
_NAMES: Mapping[VectorKind, str] = {
    "dense": "dense_vecs",
    "sparse": "lexical_weights",
    "colbert": "colbert_vecs",
}
# Tokens without a weight, by their roles. XLM-R's end of a text has two of them.
_UNWEIGHED = ("cls_token", "eos_token", "pad_token", "sep_token", "unk_token")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TextVectors:
    """What a model makes of one text; `None` for what was not asked for.

    Attributes:
        dense: Its embedding, `(dimensions,)`.
        sparse: Weights of its words, by their token ids.
        colbert: Vectors of its tokens but the first, `(tokens - 1, dimensions)`.
    """

    dense: SmallEmbedding | None = None
    sparse: SparseVector | None = None
    colbert: Embedding | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of the columns of `columns_of`."""
        sparse = self.sparse
        found = (
            self.dense,
            None if sparse is None else sparse.indices,
            None if sparse is None else sparse.values,
            self.colbert,
        )
        return tuple(each for each in found if each is not None)


def columns_of(kinds: Collection[VectorKind], dense: Column) -> tuple[Column, ...]:
    """Return the columns of what is made of a text; `dense` is that of its embedding."""
    columns: Mapping[VectorKind, tuple[Column, ...]] = {
        "dense": (dense,),
        "sparse": SPARSE_COLUMNS,
        "colbert": (VECTORS_COLUMN,),
    }
    return tuple(column for kind in VECTOR_KINDS if kind in kinds for column in columns[kind])


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedByKinds(Embed):
    """The job of `encode` that returns `TextVectors`; see `Job`.

    Attributes:
        kinds: What is made of each text.
        unweighed: Ids of tokens without a weight.
    """

    kinds: tuple[VectorKind, ...]
    unweighed: NDArray[np.int64]

    def split(self, results: Results) -> Sequence[Any]:
        """Return the `TextVectors` of each text."""
        found: dict[VectorKind, Sequence[Any]] = {}
        if "dense" in self.kinds:
            found["dense"] = list(self._finished(sentence_vectors(results)))
        if "sparse" in self.kinds:
            ids = (each["input_ids"] for each in results.features)
            rows = zip(ids, results.rows(TOKEN_WEIGHTS), strict=True)
            found["sparse"] = [largest_of_words(*each, self.unweighed) for each in rows]
        if "colbert" in self.kinds:
            found["colbert"] = [self._cut_tokens(each) for each in results.rows(TOKEN_VECTORS)]
        return [
            TextVectors(**dict(zip(found, each, strict=True)))
            for each in zip(*found.values(), strict=True)
        ]

    def _cut_tokens(self, vectors: Embedding) -> Embedding:
        """Return the vectors of all tokens but the first, cut, and of length 1 again."""
        cut = vectors[1:, : self.dimensions]
        # A copy, so that the array of a whole batch is not kept.
        return cut.copy() if cut.shape[1] == vectors.shape[1] else scaled(cut)


def largest_of_words(
    ids: NDArray[np.int64], weights: Floats, unweighed: NDArray[np.int64]
) -> SparseVector:
    """Return the largest weight of each word of a text, if it is above 0.

    `ids` and `weights` are those of its tokens, `(tokens,)`, and `unweighed` are ids that get no
    weight.
    """
    kept = (weights > 0) & ~np.isin(ids, unweighed)
    words, places = np.unique(ids[kept], return_inverse=True)
    values = np.zeros(len(words), np.float32)
    np.maximum.at(values, places, weights[kept])
    return largest_weights(words, values, None)


def unweighed_ids(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the ids of the special tokens that get no weight."""
    ids = map(tokenizer.special_id, _UNWEIGHED)
    return np.array(sorted({each for each in ids if each is not None}), np.int64)


def kinds_asked_for(
    return_dense: bool | None, return_sparse: bool | None, return_colbert_vecs: bool | None
) -> tuple[VectorKind, ...]:
    """Return the kinds that arguments of `encode` ask for; none if no argument is given.

    Raises:
        UserInputError: They leave nothing to return.
    """
    if return_dense is None and return_sparse is None and return_colbert_vecs is None:
        return ()
    # As FlagEmbedding's defaults.
    wanted = (return_dense is not False, return_sparse, return_colbert_vecs)
    kinds = tuple(kind for kind, each in zip(VECTOR_KINDS, wanted, strict=True) if each)
    if not kinds:
        raise UserInputError(
            "`return_dense=False` leaves nothing to return. Pass `return_sparse` or "
            "`return_colbert_vecs`, too.",
            argument="return_dense",
        )
    return kinds


def by_name(
    vectors: Sequence[TextVectors],
    example: TextVectors,
    convert: Callable[[Any], Any],
    *,
    is_one: bool,
) -> dict[str, Any]:
    """Return what was made of texts in the form of FlagEmbedding.

    Args:
        vectors: What was made of each text.
        example: What was made of any text, which shows what was asked for.
        convert: Makes tensors of arrays, if they were asked for.
        is_one: Whether a single text was passed, and not a list.
    """
    found: dict[str, Any] = dict.fromkeys(_NAMES.values())
    if example.dense is not None:
        # An array of no texts has as many dimensions.
        own = [each.dense for each in vectors if each.dense is not None]
        dense = np.stack([*own, example.dense])
        found[_NAMES["dense"]] = convert(dense[0] if is_one else dense[: len(vectors)])
    if example.sparse is not None:
        weights = [_by_id(each.sparse) for each in vectors if each.sparse is not None]
        found[_NAMES["sparse"]] = weights[0] if is_one else weights
    if example.colbert is not None:
        tokens = [each.colbert for each in vectors]
        found[_NAMES["colbert"]] = convert(tokens[0] if is_one else tokens)
    return found


def _by_id(vector: SparseVector) -> dict[str, float]:
    ids = map(str, vector.indices.tolist())
    return dict(zip(ids, vector.values.tolist(), strict=True))
