"""Folders as embeddings of LlamaIndex, in an index of its own."""

from __future__ import annotations

import asyncio
import importlib

import numpy as np
import pytest

import qdqbert
from qdqbert.errors import UserInputError

pytestmark = pytest.mark.slow
TEXTS = ["the cat sat on the book", "music in the night", "a dog"]


@pytest.fixture(scope="module")
def integration():
    pytest.importorskip("llama_index", reason="needs pip install 'qdqbert[llama-index]'")
    return importlib.import_module("qdqbert.integrations.llama_index")


def test_texts_and_queries_have_their_prompts(integration, prompted) -> None:
    options = {"normalize_embeddings": True}
    found = integration.QdqbertEmbedding(
        str(prompted), engine="onnxruntime", encode_options=options, embed_batch_size=2
    )
    with qdqbert.load(prompted, engine="onnxruntime") as model:
        documents = model.encode_document(TEXTS, **options)
        query = model.encode_query(TEXTS[0], **options)
    np.testing.assert_allclose(found.get_text_embedding_batch(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(found.get_text_embedding(TEXTS[1]), documents[1], atol=1e-5)
    np.testing.assert_allclose(found.get_query_embedding(TEXTS[0]), query, atol=1e-5)
    assert np.abs(documents[0] - query).max() > 1e-3
    later = asyncio.run(found.aget_text_embedding_batch(TEXTS))
    np.testing.assert_allclose(later, documents, atol=1e-5)
    later = asyncio.run(found.aget_query_embedding(TEXTS[0]))
    np.testing.assert_allclose(later, query, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_an_index_finds_the_nearest_text(integration, prompted) -> None:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.schema import TextNode

    embed_model = integration.QdqbertEmbedding(str(prompted), engine="onnxruntime")
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=embed_model)
    (best,) = index.as_retriever(similarity_top_k=1).retrieve("the dog")
    documents = np.array(embed_model.get_text_embedding_batch(TEXTS))
    scores = documents @ embed_model.get_query_embedding("the dog")
    lengths = np.linalg.norm(documents, axis=1)
    assert best.get_content() == TEXTS[int(np.argmax(scores / lengths))]


def test_other_tasks_are_refused(integration, quantized) -> None:
    with pytest.raises(UserInputError, match="LlamaIndex's embeddings need an embedder"):
        integration.QdqbertEmbedding(str(quantized("classifier").directory))
