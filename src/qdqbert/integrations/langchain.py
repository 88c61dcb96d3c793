"""Use a quantized folder as the embeddings of LangChain.

    from qdqbert.integrations.langchain import QdqbertEmbeddings

    embeddings = QdqbertEmbeddings("./my-embedder-int8")
    vectors = embeddings.embed_documents(["A sentence."])

Nothing of torch and transformers is imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from qdqbert.errors import MissingExtraError
from qdqbert.integrations.embedders import open_embedder

if importlib.util.find_spec("langchain_core") is None:
    raise MissingExtraError(
        "langchain-core is not installed. Install it with: pip install 'qdqbert[langchain]'"
    )

from langchain_core.embeddings import Embeddings


class QdqbertEmbeddings(Embeddings):
    """An embedder that LangChain's vector stores and retrievers take.

    Documents get the folder's document prompt, and queries its query prompt, if it has them, as in
    sentence-transformers.
    """

    def __init__(
        self, path: str, *, encode_options: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """Load the model.

        Args:
            path: Folder that `quantize` wrote for an embedder, or a float checkpoint of one; or
                its name on the hub.
            encode_options: Options of `Embedder.encode`, such as `normalize_embeddings`.
            options: Options of `qdqbert.load`, such as `engine`.

        Raises:
            UserInputError: It is not an embedder.
            CheckpointError: See `qdqbert.load`.
        """
        self.model = open_embedder(path, "LangChain", **options)
        self._options = dict(encode_options or {})

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return an embedding for each text."""
        found: list[list[float]] = self.model.encode_document(texts, **self._options).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """Return the embedding of a query."""
        found: list[float] = self.model.encode_query(text, **self._options).tolist()
        return found
