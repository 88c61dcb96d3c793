"""Folders as embeddings and postprocessors of LlamaIndex."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import pickle

import numpy as np
import pytest
import torch

import qdqbert
from qdqbert.common.errors import UserInputError

pytestmark = pytest.mark.slow
TEXTS = ["the cat sat on the book", "music in the night", "a dog"]


@pytest.fixture(scope="module")
def integration():
    pytest.importorskip("llama_index", reason="needs pip install 'qdqbert[llama-index]'")
    return importlib.import_module("qdqbert.integrations.llama_index")


def test_texts_and_queries_have_their_prompts(integration, prompted) -> None:
    options = {"normalize_embeddings": True}
    found = integration.QdqbertEmbedding(str(prompted), engine="onnxruntime", embed_batch_size=2)
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
    assert best.get_content() == TEXTS[int(np.argmax(scores))]


@pytest.fixture(scope="module")
def embedding(integration, prompted):
    return integration.QdqbertEmbedding(
        model_name=str(prompted),
        max_length=np.int64(8),
        query_instruction="in the ",
        text_instruction="a ",
        normalize=False,
        embed_batch_size=np.int64(2),
        num_workers=2,
        show_progress_bar=False,
        encode_kwargs={"truncate_dim": 20},
        model_kwargs={"threads": 1},
        device="cpu",
        cache_folder=None,
        trust_remote_code=True,
        parallel_process=False,
        engine="onnxruntime",
    )


@pytest.fixture(scope="module")
def reranking(integration, checkpoints):
    folder = str(checkpoints("reranker"))
    return integration.QdqbertRerank(
        model=folder,
        top_n=np.int64(2),
        keep_retrieval_score=True,
        threads=1,
        cross_encoder_kwargs={"max_length": 16, "activation_fn": torch.nn.Identity()},
    )


def test_arguments_have_the_names_of_hugging_face_embedding(embedding, prompted) -> None:
    with qdqbert.load(prompted, engine="onnxruntime") as model:
        model.max_seq_length = 8
        documents = model.encode([f"a {each}" for each in TEXTS], prompt="", truncate_dim=20)
        query = model.encode(f"in the {TEXTS[0]}", prompt="", truncate_dim=20)
    np.testing.assert_allclose(embedding.get_text_embedding_batch(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(embedding.get_query_embedding(TEXTS[0]), query, atol=1e-5)


def nodes():
    from llama_index.core.schema import NodeWithScore, TextNode

    made = [TextNode(text=text, metadata={"place": n}) for n, text in enumerate(TEXTS)]
    return [NodeWithScore(node=node, score=n / 10) for n, node in enumerate(made)]


def answered(component):
    """Return what a component computes."""
    if hasattr(component, "postprocess_nodes"):
        found = component.postprocess_nodes(nodes(), query_str="the dog")
        return [(each.node.metadata, each.score) for each in found]
    return component.get_text_embedding_batch(TEXTS), component.get_query_embedding("a dog")


WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "model_copy": lambda each: each.model_copy(deep=True),
    "dict": lambda each: type(each).from_dict(each.to_dict()),
    "json": lambda each: type(each).from_json(each.to_json()),
    "file of JSON": lambda each: type(each).from_dict(json.loads(json.dumps(each.to_dict()))),
    **{
        f"protocol {protocol}": lambda each, protocol=protocol: pickle.loads(
            pickle.dumps(each, protocol)
        )
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
}


@pytest.mark.parametrize("name", ["embedding", "reranking"])
@pytest.mark.parametrize("way", WAYS)
def test_components_survive(request, name, way) -> None:
    component = request.getfixturevalue(name)
    other = WAYS[way](component)
    assert other.to_dict() == component.to_dict()
    assert answered(other) == answered(component)


def test_a_pickle_leaves_out_callbacks_that_cannot_be_pickled(integration, checkpoints) -> None:
    from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler

    handler = LlamaDebugHandler(print_trace_on_end=False)
    handler.lock = lambda: None
    folder = str(checkpoints("sentence"))
    found = integration.QdqbertEmbedding(folder, callback_manager=CallbackManager([handler]))
    again = pickle.loads(pickle.dumps(found))
    assert again.callback_manager.handlers == []
    assert again.get_text_embedding("a") == found.get_text_embedding("a")


def test_a_limit_that_is_set_later_is_obeyed(embedding) -> None:
    found = copy.deepcopy(embedding)
    found.max_length = 5
    assert (found.max_length, found._model.max_length) == (5, 5)
    assert type(found).from_dict(found.to_dict()).max_length == 5
    for name in ("model_name", "model_kwargs"):
        with pytest.raises(UserInputError, match=f"`{name}` is that of the loaded model"):
            setattr(found, name, getattr(found, name))


@pytest.mark.filterwarnings("ignore")
def test_workers_of_a_pipeline_embed(embedding) -> None:
    from llama_index.core import Document
    from llama_index.core.ingestion import IngestionPipeline

    documents = [Document(text=text) for text in TEXTS]
    found = IngestionPipeline(transformations=[embedding]).run(documents=documents, num_workers=2)
    vectors = {each.get_content(): each.embedding for each in found}
    for text in TEXTS:
        np.testing.assert_allclose(vectors[text], embedding.get_text_embedding(text), atol=1e-6)


def test_nodes_are_those_of_sentence_transformer_rerank(integration, checkpoints) -> None:
    from llama_index.core.postprocessor import SentenceTransformerRerank

    library = importlib.import_module("qdqbert.integrations.sentence_transformers")
    folder = str(checkpoints("reranker"))
    real = SentenceTransformerRerank(
        model=folder, top_n=2, keep_retrieval_score=True, device="cpu", trust_remote_code=False
    )
    real._model = library.load(folder)
    found = integration.QdqbertRerank(folder, top_n=2, keep_retrieval_score=True)
    ours, theirs = answered(found), answered(real)
    assert [metadata for metadata, _ in ours] == [metadata for metadata, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-6)
    assert found.postprocess_nodes([], query_str="a") == []
    with pytest.raises(UserInputError, match="Pass `query_bundle` or `query_str`"):
        found.postprocess_nodes(nodes())


def test_what_cannot_be_obeyed_is_refused_by_name(integration, checkpoints) -> None:
    folder, reranker = str(checkpoints("sentence")), str(checkpoints("reranker"))
    for options, message in (
        ({"device": "cuda"}, "`device='cuda'`"),
        ({"cache_folder": "/tmp"}, "HF_HUB_CACHE"),
        ({"parallel_process": True}, "Pass `threads`"),
        ({"pooling": "cls"}, "TaskOptions"),
        ({"max_length": 1}, "`max_seq_length` must be above"),
        ({"max_length": 8, "model_kwargs": {"max_seq_length": 10}}, "contradict each other"),
    ):
        with pytest.raises(UserInputError, match=message):
            integration.QdqbertEmbedding(folder, **options)
    for options, message in (
        ({"device": "cuda"}, "`device='cuda'`"),
        ({"top_n": 0}, "`top_n` must be at least 1"),
        ({"top_n": 1.5}, "`top_n` must be a whole number"),
        ({"truncate_dim": 3}, "does not apply"),
        ({"cross_encoder_kwargs": {"automodel_args": {"a": 1}}}, "`automodel_args={'a': 1}`"),
    ):
        with pytest.raises(UserInputError, match=message):
            integration.QdqbertRerank(reranker, **options)


def test_other_tasks_are_refused(integration, quantized) -> None:
    folder = str(quantized("classifier").directory)
    with pytest.raises(UserInputError, match="LlamaIndex's embeddings need an embedder"):
        integration.QdqbertEmbedding(folder)
    with pytest.raises(UserInputError, match="LlamaIndex's postprocessor needs a reranker"):
        integration.QdqbertRerank(folder)
