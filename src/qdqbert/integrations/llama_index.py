"""Use a quantized folder as the embeddings of LlamaIndex.

    from qdqbert.integrations.llama_index import QdqbertEmbedding

    embed_model = QdqbertEmbedding("./my-embedder-int8")
    vectors = embed_model.get_text_embedding_batch(["A sentence."])

Nothing of torch and transformers is imported.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.errors import MissingExtraError
from qdqbert.integrations.embedders import open_embedder
from qdqbert.tasks.feature_extraction import Embedder

if importlib.util.find_spec("llama_index") is None:
    raise MissingExtraError(
        "llama-index-core is not installed. Install it with: pip install 'qdqbert[llama-index]'"
    )

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr


class QdqbertEmbedding(BaseEmbedding):  # type: ignore[misc]
    """An embedder that LlamaIndex's indexes and retrievers take.

    Texts get the folder's document prompt, and queries its query prompt, if it has them, as in
    sentence-transformers.
    """

    _model: Embedder = PrivateAttr()
    _options: Mapping[str, Any] = PrivateAttr()

    def __init__(
        self,
        path: str,
        *,
        embed_batch_size: int = 512,
        encode_options: Mapping[str, Any] | None = None,
        callback_manager: Any = None,
        num_workers: int | None = None,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            path: Folder that `quantize` wrote for an embedder, or a float checkpoint of one; or
                its name on the hub.
            embed_batch_size: Number of texts that LlamaIndex passes on at a time. They are sorted
                by length and divided further, so a large number is fast.
            encode_options: Options of `Embedder.encode`, such as `normalize_embeddings`.
            callback_manager: Callbacks of LlamaIndex.
            num_workers: Number of concurrent calls of LlamaIndex's asynchronous methods.
            options: Options of `qdqbert.load`, such as `engine`.

        Raises:
            UserInputError: It is not an embedder.
            CheckpointError: See `qdqbert.load`.
        """
        super().__init__(
            model_name=str(path),
            embed_batch_size=embed_batch_size,
            callback_manager=callback_manager,
            num_workers=num_workers,
        )
        self._model = open_embedder(path, "LlamaIndex", **options)
        self._options = dict(encode_options or {})

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes down for the class."""
        return "QdqbertEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._model.encode_query(query, **self._options).tolist()
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        found = self._model.encode_document(list(texts), **self._options)
        embeddings: list[list[float]] = found.tolist()
        return embeddings

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
