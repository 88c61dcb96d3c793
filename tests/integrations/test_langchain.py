"""Folders as embeddings of LangChain, in a vector store of its own."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import qdqbert
from qdqbert.errors import UserInputError

library = pytest.importorskip("langchain_core", reason="langchain-core is missing")
integration = pytest.importorskip("qdqbert.integrations.langchain")

TEXTS = ["the cat sat on the book", "music in the night", "a dog"]


def test_documents_and_queries_have_their_prompts(prompted) -> None:
    options = {"normalize_embeddings": True}
    found = integration.QdqbertEmbeddings(
        str(prompted), engine="onnxruntime", encode_options=options
    )
    assert isinstance(found, library.embeddings.Embeddings)
    with qdqbert.load(prompted, engine="onnxruntime") as model:
        documents = model.encode_document(TEXTS, **options)
        query = model.encode_query(TEXTS[0], **options)
    np.testing.assert_allclose(found.embed_documents(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(found.embed_query(TEXTS[0]), query, atol=1e-5)
    assert np.abs(documents[0] - query).max() > 1e-3
    later = asyncio.run(found.aembed_documents(TEXTS))
    np.testing.assert_allclose(later, documents, atol=1e-5)


def test_a_vector_store_finds_the_nearest_text(prompted) -> None:
    from langchain_core.vectorstores import InMemoryVectorStore

    embeddings = integration.QdqbertEmbeddings(str(prompted), engine="onnxruntime")
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    scores = np.array(embeddings.embed_documents(TEXTS)) @ embeddings.embed_query("the dog")
    lengths = np.linalg.norm(embeddings.embed_documents(TEXTS), axis=1)
    (best,) = store.similarity_search("the dog", k=1)
    assert best.page_content == TEXTS[int(np.argmax(scores / lengths))]


def test_other_tasks_are_refused(quantized) -> None:
    with pytest.raises(UserInputError, match="need an embedder"):
        integration.QdqbertEmbeddings(str(quantized("classifier").directory))
