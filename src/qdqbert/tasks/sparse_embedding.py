"""Sparse embeddings: a weight of each word of the vocabulary, most of them 0, as SPLADE's.

They are scored as other embeddings are. The model has the interface of sentence-transformers'
`SparseEncoder`.

Source: Formal et al. 2021, arXiv:2107.05720 and arXiv:2109.10086.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args, overload

import numpy as np

from qdqbert.common.errors import UserInputError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import Fields, damaged
from qdqbert.common.keywords import suggest_keywords
from qdqbert.encoders.checkpoint.model_settings import Kind
from qdqbert.encoders.checkpoint.sparse_encoder import read_query_weights
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_choice, check_text, check_whole, listed_texts
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.rows import RowFormat, always
from qdqbert.runtime.scheduler import EncodedItem, Job
from qdqbert.runtime.tensors import converted
from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION
from qdqbert.tasks.prompts import CallOptions, Prompted, PromptedModel, Texts, check_as_many
from qdqbert.tasks.sparse_vectors import (
    SPARSE_COLUMNS,
    Floats,
    SparseEmbeddings,
    SparseVector,
    as_matrix,
    cosines,
    is_one,
    largest_weights,
    stack_vectors,
)

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "sparse-embedding"
(_OUTPUT,) = TASK_KINDS[_NAME].outputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Weigh(Prompted):
    """The job of `encode`; see `Job`.

    Attributes:
        max_active_dims: Most weights of a text; `None` for any number.
    """

    max_active_dims: int | None

    def split(self, results: Results) -> Sequence[SparseVector]:
        rows = results.outputs[_OUTPUT]
        words = np.arange(rows.shape[1])
        return [largest_weights(words, row, self.max_active_dims) for row in rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LookUp(_Weigh):
    """The job of `encode` for queries whose tokens have stored weights. It runs no model.

    Attributes:
        weights: Weight of each token id.
    """

    weights: Floats

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return items without features, and the ids of their tokens in `places`."""
        texts = [self.prompt + check_text(item) for item in items]
        return [
            EncodedItem(features=(), places=each.ids, truncated=bool(each.overflowing))
            for each in self.tokenizer.encode_batch(texts, special=False)
        ]

    def answer(self, _: Any, encoded: EncodedItem, __: Sequence[SparseVector]) -> SparseVector:
        ids = np.unique(np.array(encoded.places, np.int64))
        return largest_weights(ids, self.weights[ids], self.max_active_dims)


class EncodeOptions(CallOptions, total=False):
    """Options of `SparseEmbedder.encode` that do not change the type of its result."""

    task: Kind | None
    max_active_dims: int | None


class SparseEmbedder(PromptedModel[SparseEmbeddings]):
    """Computes sparse embeddings of texts."""

    has_kinds = True
    similarities = MappingProxyType({"dot": SparseEmbeddings.dot, "cosine": cosines})

    rows = RowFormat(
        name="a sparse embedder",
        options=("prompt", "prompt_name", "top_k"),
        columns=always(*SPARSE_COLUMNS),
        job=lambda model, options: model.job(
            prompt_name=options.prompt_name, prompt=options.prompt, max_active_dims=options.top_k
        ),
        values=lambda answer, _: (answer.indices, answer.values),
    )

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        folder = loaded.artifact.directory
        config = Fields(loaded.config, lambda reason: damaged(folder / CONFIG, reason))
        self.dimensions = config.integer("vocab_size")
        self._queries = read_query_weights(folder, vocabulary=self.dimensions)

    @overload
    def encode(
        self,
        inputs: Texts,
        *,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[EncodeOptions],
    ) -> SparseEmbeddings: ...

    @overload
    def encode(
        self, inputs: Texts, *, convert_to_tensor: Literal[True], **options: Unpack[EncodeOptions]
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        inputs: Texts,
        *,
        convert_to_tensor: bool = False,
        convert_to_sparse_tensor: bool,
        **options: Unpack[EncodeOptions],
    ) -> Any: ...

    @suggest_keywords
    def encode(
        self,
        inputs: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        task: Kind | None = None,
        max_active_dims: int | None = None,
        convert_to_tensor: bool = False,
        convert_to_sparse_tensor: bool = True,
        device: str | None = None,
    ) -> Any:
        """Compute sparse embeddings, as `SparseEncoder.encode` of sentence-transformers does.

        Args:
            inputs: A text, or a list of texts.
            prompt_name: Name of the prompt, a key of `prompts`, that is put before each text. The
                folder's default prompt, if it has one, is used by default.
            prompt: Text that is put before each text, instead of a named prompt.
            batch_size: Has no effect. It is there for code that passes it to sentence-transformers.
            show_progress_bar: Whether to show a bar on stderr.
            task: Whether texts are queries or documents. Models with weights of tokens in queries
                (SparseStaticEmbedding of sentence-transformers) look these up for a query, and run
                no model.
            max_active_dims: Most words of a text that have a weight: the largest weights are kept.
                The folder's setting by default, or all.
            convert_to_tensor: Whether the result is a tensor of torch.
            convert_to_sparse_tensor: Whether the result is sparse. Otherwise it is an array or a
                tensor with all words, float32 `(texts, words)`.
            device: Has no effect, and can be "cpu" only.

        Returns:
            A row for each text, also for a single one.

        Raises:
            UserInputError: `prompt_name` or `task` is unknown, `max_active_dims` is below 1, or
                `inputs` is not a text or a list of texts.

        Example:
            >>> found = model.encode(["how to fix a leaking kitchen tap"])
            >>> model.decode(found, top_k=3)
            [[('kitchen', 1.67), ('tap', 1.66), ('leak', 1.6)]]
        """
        job = self.job(
            prompt_name=prompt_name, prompt=prompt, task=task, max_active_dims=max_active_dims
        )
        texts = [inputs] if isinstance(inputs, str) else listed_texts(inputs, "inputs")
        vectors = self._call(
            job, texts, batch_size=batch_size, show_progress_bar=show_progress_bar, device=device
        )
        found = stack_vectors(vectors, self.dimensions)
        if not convert_to_sparse_tensor:
            dense = found.to_dense()
            return converted(dense, convert_to_numpy=True, convert_to_tensor=convert_to_tensor)
        return found.to_tensor() if convert_to_tensor else found

    @suggest_keywords
    def decode(self, embeddings: Any, top_k: int | None = None) -> list[Any]:
        """Return the words of embeddings with their weights, the largest first.

        Args:
            embeddings: Embeddings of this model, as `similarity` takes them.
            top_k: Most words of each; `None` for all.

        Returns:
            For each embedding, pairs of a token of the vocabulary and its weight. The token is
            `None` for an id that is not in the vocabulary of the tokenizer. For one embedding, as
            `encode(texts)[0]`, its pairs alone.

        Raises:
            UserInputError: `top_k` is below 1, or `embeddings` is something else.
        """
        check_whole("top_k", top_k, at_least=1)
        decoded = []
        for row in as_matrix(embeddings, "embeddings", self.dimensions):
            order = np.argsort(-row.values, kind="stable")[:top_k]
            tokens = self._loaded.tokenizer.tokens(row.indices[order].tolist())
            decoded.append(list(zip(tokens, row.values[order].tolist(), strict=True)))
        return decoded[0] if is_one(embeddings) else decoded

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Floats:
        """Compare all pairs of embeddings, as `SparseEncoder.similarity` does.

        Args:
            embeddings1: Embeddings of this model, of queries for example: what `encode` returns,
                one embedding of it, a tensor of torch or an array `(texts, words)`, or a list of
                embeddings.
            embeddings2: The same, of documents.

        Returns:
            float32, `(texts of embeddings1, texts of embeddings2)`: products, or cosines if the
            folder's `similarity_fn_name` is "cosine".

        Raises:
            UserInputError: The numbers of dimensions differ, or the folder's function is another.
        """
        one, other = self._both(embeddings1=embeddings1, embeddings2=embeddings2)
        return self._compare(one, other)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Floats:
        """Compare embeddings with those in the same places; see `similarity`.

        Args:
            embeddings1: Embeddings of this model.
            embeddings2: As many others.

        Returns:
            float32 `(texts,)`.

        Raises:
            UserInputError: The numbers differ, or as in `similarity`.
        """
        one, other = self._both(embeddings1=embeddings1, embeddings2=embeddings2)
        check_as_many(one, other, "embeddings2")
        pairs = zip(one, other, strict=True)
        return np.array([self.similarity(a, b)[0, 0] for a, b in pairs], np.float32)

    def intersection(self, embeddings_1: Any, embeddings_2: Any) -> SparseVector | SparseEmbeddings:
        """Return the products of the weights that two texts share, if they are above 0.

        Args:
            embeddings_1: Embedding of one text.
            embeddings_2: Embeddings as `similarity` takes them.

        Returns:
            A row for each of `embeddings_2`; a `SparseVector` for one, as `encode(texts)[0]`.

        Raises:
            UserInputError: `embeddings_1` has several texts, or the numbers of dimensions differ.
        """
        one, other = self._both(embeddings_1=embeddings_1, embeddings_2=embeddings_2)
        if len(one) != 1:
            raise UserInputError(
                f"`embeddings_1` must be the embedding of one text, got {len(one)}.",
                argument="embeddings_1",
            )
        (weights,) = one.to_dense()
        shared = [
            largest_weights(each.indices, np.maximum(weights[each.indices] * each.values, 0), None)
            for each in other
        ]
        return shared[0] if is_one(embeddings_2) else stack_vectors(shared, other.dimensions)

    def sparsity(self, embeddings: Any) -> dict[str, float]:
        """Return the mean number of words with a weight, and the mean share of those without.

        Args:
            embeddings: Embeddings as `similarity` takes them.

        Returns:
            `active_dims` and `sparsity_ratio`.

        Raises:
            UserInputError: `embeddings` is something else.
        """
        found = as_matrix(embeddings, "embeddings", self.dimensions)
        active = len(found.values) / max(len(found), 1)
        return {"active_dims": active, "sparsity_ratio": 1 - active / max(found.dimensions, 1)}

    def _both(self, **given: Any) -> list[SparseEmbeddings]:
        """Return two arguments as matrices with the same number of dimensions."""
        found = [as_matrix(each, name, self.dimensions) for name, each in given.items()]
        one, other = (each.dimensions for each in found)
        if one != other:
            names = list(given)
            raise UserInputError(
                f"`{names[0]}` and `{names[1]}` must have the same number of dimensions; got {one} "
                f"and {other}.",
                argument=names[1],
            )
        return found

    @suggest_keywords
    def job(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        task: Kind | None = None,
        max_active_dims: int | None = None,
    ) -> Job[str, SparseVector]:
        """Return the job of `encode` with these options, for `stream`."""
        if task is not None:
            check_choice("task", task, get_args(Kind))
        check_whole("max_active_dims", max_active_dims, at_least=1)
        loaded = self._loaded
        shared: dict[str, Any] = {
            "tokenizer": loaded.tokenizer,
            "input_names": loaded.artifact.input_names,
            "prompt": self._prompt(prompt_name, prompt),
            "max_active_dims": max_active_dims or self._settings.max_active_dims,
        }
        queries = self._queries
        if queries is None or task == "document" or (task is None and not queries.is_default):
            return _Weigh(**shared)
        return _LookUp(**shared, weights=queries.weights)


SPARSE_EMBEDDING = dataclasses.replace(
    FEATURE_EXTRACTION,
    name=_NAME,
    predictions=lambda results: list(results.outputs[_OUTPUT]),
    labels=None,
    model=SparseEmbedder,
)
