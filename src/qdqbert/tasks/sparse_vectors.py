"""Sparse embeddings as data: a weight of each word of the vocabulary, most of them 0."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.data.tables.rows import Column
from qdqbert.runtime.inputs import described

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]

SPARSE_COLUMNS = (
    Column(name="indices", kind="numbers", dtype="int32"),
    Column(name="values", kind="numbers"),
)
"""Columns of `run` with the words of a text and their weights."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """The weights of one text that are not 0.

    Attributes:
        indices: Ids of the words, in order. int32 `(words,)`.
        values: Their weights. float32 `(words,)`.
    """

    indices: NDArray[np.int32]
    values: Floats


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SparseEmbeddings:
    """Sparse embeddings of texts, as the rows of a matrix in CSR form.

    Row `i` has the values `values[indptr[i] : indptr[i + 1]]` in the columns
    `indices[indptr[i] : indptr[i + 1]]`, which are ids of words, and 0 in others. So
    `scipy.sparse.csr_matrix((values, indices, indptr), shape)` is the matrix. Iteration and an
    index give a `SparseVector`, and a slice, a list of numbers or a mask `SparseEmbeddings`.

    Attributes:
        indptr: Start of each row, and the end. int64 `(texts + 1,)`.
        indices: Ids of words, in order in each row. int32 `(values,)`.
        values: Weights, none of which is 0. float32 `(values,)`.
        dimensions: Number of words of the vocabulary.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: Floats
    dimensions: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of texts, and of words of the vocabulary."""
        return len(self), self.dimensions

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __iter__(self) -> Iterator[SparseVector]:
        return map(self.row, range(len(self)))

    @overload
    def __getitem__(self, index: SupportsIndex) -> SparseVector: ...

    @overload
    def __getitem__(self, index: Any) -> SparseEmbeddings: ...

    def __getitem__(self, index: Any) -> SparseVector | SparseEmbeddings:
        """Return the embedding of one text, or those that NumPy takes of an array: a slice, ..."""
        chosen = np.arange(len(self))[index]
        if chosen.ndim == 0:
            return self.row(int(chosen))
        return stack_vectors([self.row(each) for each in chosen.tolist()], self.dimensions)

    def row(self, index: int) -> SparseVector:
        """Return the embedding of one text, which counts from 0."""
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} embeddings, and none with number {index}.")
        chosen = slice(self.indptr[index], self.indptr[index + 1])
        return SparseVector(self.indices[chosen], self.values[chosen])

    def to_dense(self) -> Floats:
        """Return the embeddings as float32 `(texts, dimensions)`."""
        dense = np.zeros(self.shape, np.float32)
        dense[self._rows(), self.indices] = self.values
        return dense

    def to_tensor(self) -> Tensor:
        """Return the embeddings as a sparse tensor of torch, float32 `(texts, dimensions)`.

        Raises:
            MissingExtraError: torch is not installed.
        """
        require("A tensor of torch", "quantize", "torch")
        import torch

        places = np.stack([self._rows(), self.indices.astype(np.int64)])
        return torch.sparse_coo_tensor(
            torch.from_numpy(places),
            torch.from_numpy(self.values),
            self.shape,
            check_invariants=True,
        ).coalesce()

    def dot(self, other: SparseEmbeddings) -> Floats:
        """Return the products of all pairs of embeddings, `(texts, texts of other)`."""
        rows, found = other._rows(), np.empty((len(self), len(other)), np.float32)
        for index, one in enumerate(self):
            query = np.zeros(self.dimensions)
            query[one.indices] = one.values
            products = query[other.indices] * other.values
            found[index] = np.bincount(rows, weights=products, minlength=len(other))
        return found

    def lengths(self) -> NDArray[np.float64]:
        """Return the Euclidean lengths of the embeddings, `(texts,)`."""
        squares = self.values.astype(np.float64) ** 2
        return np.sqrt(np.bincount(self._rows(), weights=squares, minlength=len(self)))

    def _rows(self) -> NDArray[np.int64]:
        """Return the row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))


def cosines(one: SparseEmbeddings, other: SparseEmbeddings) -> Floats:
    """Return the cosines of all pairs of embeddings, `(texts, texts of other)`."""
    lengths = np.outer(one.lengths(), other.lengths())
    return np.asarray(one.dot(other) / np.maximum(lengths, 1e-12), np.float32)


def stack_vectors(vectors: Sequence[SparseVector], dimensions: int) -> SparseEmbeddings:
    """Return the embeddings of texts as one matrix."""
    counts = [len(each.indices) for each in vectors]
    return SparseEmbeddings(
        indptr=np.cumsum([0, *counts], dtype=np.int64),
        indices=np.concatenate([np.zeros(0, np.int32), *(each.indices for each in vectors)]),
        values=np.concatenate([np.zeros(0, np.float32), *(each.values for each in vectors)]),
        dimensions=dimensions,
    )


def as_matrix(given: Any, argument: str, dimensions: int) -> SparseEmbeddings:
    """Return embeddings of any form as a matrix.

    Args:
        given: The result of `encode` or of sentence-transformers, one embedding of it, a tensor of
            torch, a matrix of SciPy or an array, sparse or dense, `(texts, words)` or `(words,)`,
            or a list of these.
        argument: Name of the parameter, for errors.
        dimensions: Number of words of the vocabulary, which a `SparseVector` does not say.

    Raises:
        UserInputError: They are something else.
    """
    if isinstance(given, SparseEmbeddings):
        return given
    if isinstance(given, SparseVector):
        return stack_vectors([given], dimensions)
    if isinstance(given, list | tuple) and all(
        isinstance(each, SparseEmbeddings) or is_one(each) for each in given
    ):
        rows = [as_matrix(each, argument, dimensions) for each in given]
        widths = {each.dimensions for each in rows} or {dimensions}
        if len(widths) == 1:
            return stack_vectors([vector for each in rows for vector in each], *widths)
    try:
        if hasattr(given, "to_sparse"):
            tensor = given.detach().cpu().float().to_sparse().coalesce()
            shape, places, values = tensor.shape, tensor.indices().numpy(), tensor.values().numpy()
        elif hasattr(given, "tocsr"):
            matrix = given.tocsr(copy=True)
            matrix.sum_duplicates()
            made = matrix.tocoo()
            shape, places, values = made.shape, np.array([made.row, made.col]), made.data
        else:
            dense = np.asarray(given, np.float32)
            shape, places = dense.shape, np.array(dense.nonzero())
            values = dense[tuple(places)]
    except (TypeError, ValueError):
        shape = ()
    if len(shape) not in (1, 2):
        raise UserInputError(
            f"`{argument}` must be embeddings as `encode` returns them, or a tensor or an array "
            f"`(texts, words)`, got {described(given)}.",
            argument=argument,
        )
    count, width = (1, *shape)[-2:]
    places = places[:, values != 0]
    counts = np.bincount(places[0], minlength=count) if len(shape) == 2 else [places.shape[1]]
    return SparseEmbeddings(
        indptr=np.cumsum([0, *counts], dtype=np.int64),
        indices=places[-1].astype(np.int32),
        values=values[values != 0].astype(np.float32),
        dimensions=width,
    )


def is_one(given: Any) -> bool:
    """Return whether it is the embedding of one text."""
    return isinstance(given, SparseVector) or getattr(given, "ndim", None) == 1


def largest_weights(
    indices: NDArray[np.integer[Any]], values: Floats, count: int | None
) -> SparseVector:
    """Return the largest weights by absolute value that are not 0, in the order of their words.

    `indices` are ids of words, in order, and `values` their weights, both `(words,)`. Without a
    `count`, all are returned.
    """
    # NumPy finds true values much faster than numbers that are not 0.
    kept = np.flatnonzero(values != 0)
    if count is not None and count < len(kept):
        # Of equal weights, the first words are kept.
        order = np.argsort(-np.abs(values[kept]), kind="stable")
        kept = np.sort(kept[order[:count]])
    return SparseVector(indices[kept].astype(np.int32), values[kept])
