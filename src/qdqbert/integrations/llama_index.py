"""Use a quantized folder as the embeddings, or the reranker, of LlamaIndex.

    from qdqbert.integrations.llama_index import QdqbertEmbedding, QdqbertRerank

    embed_model = QdqbertEmbedding("./my-embedder-int8")
    vectors = embed_model.get_text_embedding_batch(["A sentence."])

The arguments have the names that `HuggingFaceEmbedding` and `SentenceTransformerRerank` have.
Nothing of torch and transformers is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.common.keywords import plain
from qdqbert.common.objects import ModelLike
from qdqbert.integrations.models import encode_options, joined, open_model
from qdqbert.runtime.inputs import check_whole
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.reranking import Reranker

require("A model for LlamaIndex", "llama-index")

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseComponent, MetadataMode
from pydantic import BaseModel, PrivateAttr


class _Component(BaseComponent):  # type: ignore[misc]
    """A component whose pickle loads the model again, without the callbacks of this process."""

    model_kwargs: dict[str, Any]
    _model: Any = PrivateAttr()

    # LlamaIndex's methods take what cannot be pickled away from the object, and load models twice.
    def __getstate__(self) -> dict[str, Any]:
        state = BaseModel.__getstate__(self)
        return {**state, "__dict__": {**vars(self), "callback_manager": CallbackManager([])}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        BaseModel.__setstate__(self, state)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("model", "model_name", "model_kwargs"):
            raise UserInputError(
                f"`{name}` is that of the loaded model. Make a new {type(self).__name__}.",
                argument=name,
            )
        if name == "max_length":
            self._model.max_seq_length = value
            value = self._model.max_seq_length
        if name == "encode_kwargs":
            value = encode_options(encode_kwargs=value)
        super().__setattr__(name, value)


class QdqbertEmbedding(_Component, BaseEmbedding):  # type: ignore[misc]
    """An embedder that LlamaIndex's indexes and retrievers take.

    Texts get the folder's document prompt, and queries its query prompt, if it has them, as in
    sentence-transformers.
    """

    max_length: int
    query_instruction: str | None
    text_instruction: str | None
    normalize: bool
    show_progress_bar: bool
    encode_kwargs: dict[str, Any]
    _model: Embedder = PrivateAttr()

    def __init__(
        self,
        model_name: ModelLike,
        *,
        max_length: int | None = None,
        query_instruction: str | None = None,
        text_instruction: str | None = None,
        normalize: bool = True,
        embed_batch_size: int = 512,
        show_progress_bar: bool = False,
        encode_kwargs: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        callback_manager: Any = None,
        num_workers: int | None = None,
        embeddings_cache: Any = None,
        rate_limiter: Any = None,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            model_name: Folder that `quantize` wrote for an embedder, or a float checkpoint of one;
                or its name on the hub.
            max_length: Longest input in tokens; the folder's by default.
            query_instruction: Text before each query, instead of the folder's prompt.
            text_instruction: Text before each other text, instead of the folder's prompt.
            normalize: Whether to scale embeddings to length 1.
            embed_batch_size: Number of texts that LlamaIndex passes on at a time. They are sorted
                by length and divided further, so a large number is fast.
            show_progress_bar: Whether to show a bar on stderr for each batch.
            encode_kwargs: Other options of `Embedder.encode`, such as `chunk_overlap`.
            model_kwargs: Options of `qdqbert.load`, such as `engine`.
            callback_manager: Callbacks of LlamaIndex.
            num_workers: Number of concurrent calls of LlamaIndex's asynchronous methods.
            embeddings_cache: Where LlamaIndex keeps embeddings.
            rate_limiter: Limits LlamaIndex's calls.
            options: The same as `model_kwargs`.

        Raises:
            UserInputError: It is not an embedder, or an option cannot be obeyed.
            CheckpointError: See `qdqbert.load`.
        """
        given = joined({"max_length": max_length, **options}, model_kwargs=model_kwargs)
        own = encode_options(encode_kwargs=encode_kwargs)
        wanted = "embeddings need an embedder"
        model = open_model(model_name, Embedder, "LlamaIndex", wanted, given)
        for each in ("max_length", "max_seq_length"):
            given.pop(each, None)
        super().__init__(
            model_name=model.name,
            max_length=model.max_length,
            query_instruction=query_instruction,
            text_instruction=text_instruction,
            normalize=normalize,
            embed_batch_size=plain(embed_batch_size),
            show_progress_bar=show_progress_bar,
            encode_kwargs=own,
            model_kwargs=given,
            callback_manager=callback_manager,
            num_workers=plain(num_workers),
            embeddings_cache=embeddings_cache,
            rate_limiter=rate_limiter,
        )
        self._model = model

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes down for the class."""
        return "QdqbertEmbedding"

    def _encoded(self, encode: Any, texts: Any, prompt: str | None) -> Any:
        options = {
            "prompt": prompt,
            "normalize_embeddings": self.normalize,
            "show_progress_bar": self.show_progress_bar,
            **self.encode_kwargs,
        }
        return encode(texts, **options).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        found = self._encoded(self._model.encode_query, query, self.query_instruction)
        embedding: list[float] = found
        return embedding

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        found = self._encoded(self._model.encode_document, list(texts), self.text_instruction)
        embeddings: list[list[float]] = found
        return embeddings

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


class QdqbertRerank(_Component, BaseNodePostprocessor):  # type: ignore[misc]
    """Sorts the nodes of LlamaIndex's retrievers by how well they answer a query."""

    model: str
    top_n: int
    keep_retrieval_score: bool
    _model: Reranker = PrivateAttr()

    def __init__(
        self,
        model: ModelLike,
        *,
        top_n: int = 2,
        keep_retrieval_score: bool = False,
        model_kwargs: Mapping[str, Any] | None = None,
        cross_encoder_kwargs: Mapping[str, Any] | None = None,
        callback_manager: Any = None,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            model: Folder that `quantize` wrote for a reranker, or a float checkpoint of one; or
                its name on the hub.
            top_n: Number of nodes to return.
            keep_retrieval_score: Whether the metadata of the nodes gets the score that they had,
                as `retrieval_score`.
            model_kwargs: Options of `qdqbert.load`, such as `engine`, and `max_length`, `prompts`
                and `activation_fn`, as `CrossEncoder` of sentence-transformers has them.
            cross_encoder_kwargs: The same as `model_kwargs`.
            callback_manager: Callbacks of LlamaIndex.
            options: The same as `model_kwargs`.

        Raises:
            UserInputError: It is not a reranker, or an option cannot be obeyed.
            CheckpointError: See `qdqbert.load`.
        """
        top_n = plain(top_n)
        check_whole("top_n", top_n, at_least=1)
        given = joined(
            options, model_kwargs=model_kwargs, cross_encoder_kwargs=cross_encoder_kwargs
        )
        wanted = "postprocessor needs a reranker"
        reranker = open_model(model, Reranker, "LlamaIndex", wanted, given)
        for each in given.keys() & {"activation_fn", "default_activation_function"}:
            # A function of torch is no JSON.
            given[each] = reranker.activation
        super().__init__(
            model=reranker.name,
            top_n=top_n,
            keep_retrieval_score=keep_retrieval_score,
            model_kwargs=given,
            callback_manager=callback_manager or CallbackManager([]),
        )
        self._model = reranker

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes down for the class."""
        return "QdqbertRerank"

    def _postprocess_nodes(self, nodes: list[Any], query_bundle: Any = None) -> list[Any]:
        if query_bundle is None:
            raise UserInputError("Nodes are sorted by a query. Pass `query_bundle` or `query_str`.")
        query = query_bundle.query_str
        payload = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.model,
            EventPayload.QUERY_STR: query,
            EventPayload.TOP_K: self.top_n,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            texts = [each.node.get_content(metadata_mode=MetadataMode.EMBED) for each in nodes]
            found = []
            for each in self._model.rank(query, texts, top_k=self.top_n):
                node = nodes[each["corpus_id"]]
                if self.keep_retrieval_score:
                    node.node.metadata["retrieval_score"] = node.score
                node.score = each["score"]
                found.append(node)
            event.on_end(payload={EventPayload.NODES: found})
        return found
