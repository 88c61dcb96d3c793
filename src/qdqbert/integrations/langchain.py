"""Use a quantized folder as the embeddings, or the cross-encoder, of LangChain.

    from qdqbert.integrations.langchain import QdqbertCrossEncoder, QdqbertEmbeddings

    embeddings = QdqbertEmbeddings("./my-embedder-int8")
    vectors = embeddings.embed_documents(["A sentence."])

The arguments have the names that `HuggingFaceEmbeddings` and `HuggingFaceCrossEncoder` have.
Nothing of torch and transformers is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.common.objects import ModelLike
from qdqbert.integrations.models import encode_options, joined, open_model
from qdqbert.runtime.inputs import check_text, is_pair, listed_texts
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.pair_scores import PairScorer

require("A model for LangChain", "langchain")

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings


class QdqbertEmbeddings(Embeddings):
    """An embedder that LangChain's vector stores and retrievers take.

    Documents get the folder's document prompt, and queries its query prompt, if it has them, as in
    sentence-transformers.
    """

    def __init__(
        self,
        model_name: ModelLike,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        query_encode_kwargs: Mapping[str, Any] | None = None,
        show_progress: bool = False,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            model_name: Folder that `quantize` wrote for an embedder, or a float checkpoint of one;
                or its name on the hub.
            model_kwargs: Options of `qdqbert.load`, such as `engine`, and `max_seq_length`,
                `prompts` and `truncate_dim`, as `SentenceTransformer` has them.
            encode_kwargs: Options of `Embedder.encode`, such as `normalize_embeddings`. The result
                is a list of numbers, whatever `convert_to_numpy` and `convert_to_tensor` say.
            query_encode_kwargs: The same for queries, instead of `encode_kwargs`.
            show_progress: Whether to show a bar on stderr.
            options: The same as `model_kwargs`.

        Raises:
            UserInputError: It is not an embedder, or an option cannot be obeyed.
            CheckpointError: See `qdqbert.load`.
        """
        given = joined(options, model_kwargs=model_kwargs)
        shared = {"show_progress_bar": show_progress}
        documents = encode_options(encode_kwargs=encode_kwargs)
        queries = encode_options(query_encode_kwargs=query_encode_kwargs)
        self._encode_kwargs = {**shared, **documents}
        self._query_encode_kwargs = {**shared, **(queries or documents)}
        wanted = "embeddings need an embedder"
        self.model = open_model(model_name, Embedder, "LangChain", wanted, given)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return an embedding for each text.

        Raises:
            UserInputError: `texts` is not a list of texts.
        """
        given = listed_texts(texts, "texts", takes_one=False)
        found: list[list[float]] = self.model.encode_document(given, **self._encode_kwargs).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """Return the embedding of a query.

        Raises:
            UserInputError: `text` is not a text.
        """
        given = check_text(text)
        found: list[float] = self.model.encode_query(given, **self._query_encode_kwargs).tolist()
        return found


class QdqbertCrossEncoder(BaseCrossEncoder):
    """A reranker that LangChain's `CrossEncoderReranker` takes."""

    def __init__(
        self,
        model_name: ModelLike,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            model_name: Folder that `quantize` wrote for a reranker, or for a classifier of pairs
                with two classes, of which the second one means "relevant"; or a float checkpoint of
                one; or its name on the hub.
            model_kwargs: Options of `qdqbert.load`, such as `engine`, and `max_length`, `prompts`
                and `activation_fn`, as `CrossEncoder` of sentence-transformers has them.
            options: The same as `model_kwargs`.

        Raises:
            UserInputError: It is for another task, or an option cannot be obeyed.
            CheckpointError: See `qdqbert.load`.
        """
        given = joined(options, model_kwargs=model_kwargs)
        wanted = "cross-encoders need a reranker"
        self.model = open_model(model_name, PairScorer, "LangChain", wanted, given)
        if self.model.num_labels > 2:
            self.model.close()
            raise UserInputError(
                f"`model_name={self.model.name!r}` has {self.model.num_labels} classes. "
                f"LangChain's {wanted}, with one score or two classes.",
                argument="model_name",
            )

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """Return a score for each pair of a query and a document.

        Raises:
            UserInputError: `text_pairs` is not a list of pairs of texts.
        """
        if is_pair(text_pairs):
            raise UserInputError(
                f"`text_pairs` must be a list of pairs, got one pair: {text_pairs!r:.60}. Pass it "
                "in a list.",
                argument="text_pairs",
            )
        scores = self.model.predict(text_pairs)
        found: list[float] = (scores if scores.ndim == 1 else scores[:, 1]).tolist()
        return found
