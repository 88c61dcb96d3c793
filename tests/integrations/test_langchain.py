"""Folders as embeddings and cross-encoders of LangChain."""

from __future__ import annotations

import asyncio
import copy
import pickle

import numpy as np
import pytest
import torch

import qdqbert
from qdqbert.common.errors import UserInputError

library = pytest.importorskip("langchain_core", reason="langchain-core is missing")
integration = pytest.importorskip("qdqbert.integrations.langchain")

TEXTS = ["the cat sat on the book", "music in the night", "a dog"]
PAIRS = [("the dog", text) for text in TEXTS]


def test_documents_and_queries_have_their_prompts(prompted) -> None:
    options = {"normalize_embeddings": True}
    found = integration.QdqbertEmbeddings(
        str(prompted), engine="onnxruntime", encode_kwargs=options
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


def test_arguments_have_the_names_of_hugging_face_embeddings(prompted, capsys) -> None:
    found = integration.QdqbertEmbeddings(
        model_name=str(prompted),
        model_kwargs={
            "device": "cpu",
            "trust_remote_code": True,
            "token": None,
            "max_seq_length": 6,
            "prompts": {"query": "a ", "own": "in the "},
            "truncate_dim": np.int64(20),
            "engine": "onnxruntime",
            "revision": None,
        },
        encode_kwargs={"batch_size": 2, "prompt_name": "own", "convert_to_numpy": False},
        query_encode_kwargs={"normalize_embeddings": True, "truncate_dim": 10},
        cache_folder=None,
        multi_process=False,
        show_progress=True,
    )
    with qdqbert.load(prompted, engine="onnxruntime") as model:
        model.max_seq_length = 6
        documents = model.encode([f"in the {text}" for text in TEXTS], prompt="", truncate_dim=20)
        options = {"normalize_embeddings": True, "truncate_dim": 10}
        query = model.encode(f"a {TEXTS[0]}", prompt="", **options)
    np.testing.assert_allclose(found.embed_documents(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(found.embed_query(TEXTS[0]), query, atol=1e-5)
    assert "Running the model" in capsys.readouterr().err
    for again in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        np.testing.assert_array_equal(again.embed_query("a"), found.embed_query("a"))
        np.testing.assert_array_equal(again.embed_documents(TEXTS), found.embed_documents(TEXTS))


def test_a_default_prompt_by_name_is_that_of_the_documents(checkpoints) -> None:
    options = {"prompts": {"own": "the "}, "default_prompt_name": "own"}
    found = integration.QdqbertEmbeddings(checkpoints("sentence"), **options, check=False)
    assert found.model.default_prompt_name == "own"
    expected = found.model.encode(["the a"], prompt="")
    np.testing.assert_array_equal(found.model.encode(["a"]), expected)


def test_one_text_and_a_list_are_not_mixed_up(checkpoints) -> None:
    found = integration.QdqbertEmbeddings(checkpoints("sentence"), check=False)
    for call, wrong in ((found.embed_documents, "a"), (found.embed_query, ["a"])):
        with pytest.raises(UserInputError, match="has to be a"):
            call(wrong)


def test_a_vector_store_finds_the_nearest_text(prompted) -> None:
    from langchain_core.vectorstores import InMemoryVectorStore

    embeddings = integration.QdqbertEmbeddings(str(prompted), engine="onnxruntime")
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    scores = np.array(embeddings.embed_documents(TEXTS)) @ embeddings.embed_query("the dog")
    lengths = np.linalg.norm(embeddings.embed_documents(TEXTS), axis=1)
    (best,) = store.similarity_search("the dog", k=1)
    assert best.page_content == TEXTS[int(np.argmax(scores / lengths))]


REFUSED = [
    ({"device": "cuda"}, "`device='cuda'`"),
    ({"model_kwargs": {"model_kwargs": {"dtype": "float16"}}}, "`model_kwargs={'dtype'"),
    ({"cache_folder": "/tmp"}, "HF_HUB_CACHE"),
    ({"model_kwargs": {"token": "x"}}, "HF_TOKEN"),
    ({"model_kwargs": {"revision": "main"}}, "snapshot_download"),
    ({"model_kwargs": {"backend": "onnx"}}, "Pass `engine`"),
    ({"multi_process": True}, "Pass `threads`"),
    ({"model_kwargs": {"max_seq_length": 1}}, "`max_seq_length` must be above"),
    ({"model_kwargs": {"truncate_dim": 5000}}, "have 32 dimensions"),
    ({"model_kwargs": "x"}, "`model_kwargs` must be a dict with the names .* got str 'x'"),
    ({"encode_kwargs": {1: 2}}, "`encode_kwargs` must be a dict with the names"),
    ({"model_kwargs": {"threads": 1}, "threads": 2}, "`threads=1` in `model_kwargs` contradict"),
    ({"encode_kwargs": {"output_value": "token_embeddings"}}, "`output_value='token_embeddings'`"),
    ({"query_encode_kwargs": {"output_value": None}}, "`output_value=None` in `query_encode_kw"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_obeyed_is_refused_by_name(checkpoints, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        integration.QdqbertEmbeddings(checkpoints("sentence"), check=False, **options)


def test_arguments_that_nobody_knows_are_refused(checkpoints) -> None:
    folder = checkpoints("sentence")
    with pytest.raises(TypeError, match="Did you mean `engine`"):
        integration.QdqbertEmbeddings(folder, model_kwargs={"engin": "native"})
    found = integration.QdqbertEmbeddings(folder, encode_kwargs={"normalise": True}, check=False)
    with pytest.raises(TypeError, match="'normalise'"):
        found.embed_query("a")


def test_a_cross_encoder_scores_pairs(checkpoints) -> None:
    folder = str(checkpoints("reranker"))
    found = integration.QdqbertCrossEncoder(model_name=folder, model_kwargs={"check": False})
    assert isinstance(found, library.cross_encoders.BaseCrossEncoder)
    options = {"max_length": 8, "device": "cpu", "activation_fn": torch.nn.Identity()}
    plain = integration.QdqbertCrossEncoder(folder, model_kwargs=options, check=False)
    with qdqbert.load(folder, check=False) as model:
        scores = model.predict(PAIRS)
        model.max_seq_length = 8
        logits = model.predict(PAIRS, activation="none")
    assert found.score(PAIRS) == scores.tolist()
    assert plain.score(PAIRS) == logits.tolist()
    assert found.score([]) == []
    for one, message in ((PAIRS[0], "must be a list of pairs, got one"), (["ab"], "got str 'ab'")):
        with pytest.raises(UserInputError, match=message):
            found.score(one)
    for again in (pickle.loads(pickle.dumps(plain)), copy.deepcopy(plain)):
        assert again.score(PAIRS) == plain.score(PAIRS)


def test_the_second_of_two_classes_is_the_score(tiny_artifact) -> None:
    _, folder = tiny_artifact("AutoModelForSequenceClassification", num_labels=2)
    found = integration.QdqbertCrossEncoder(folder, engine="onnxruntime")
    with qdqbert.load(folder, engine="onnxruntime") as model:
        assert found.score(PAIRS) == model.predict(PAIRS)[:, 1].tolist()


def test_other_tasks_are_refused(quantized, checkpoints) -> None:
    with pytest.raises(UserInputError, match="need an embedder"):
        integration.QdqbertEmbeddings(str(quantized("classifier").directory))
    for name, message in (
        ("classifier", "has 3 classes. LangChain's cross-encoders need a reranker, with one score"),
        ("sentence", "is a model for 'feature-extraction'. LangChain's cross-encoders need"),
    ):
        with pytest.raises(UserInputError, match=message):
            integration.QdqbertCrossEncoder(checkpoints(name), check=False)
    with pytest.raises(UserInputError, match="`truncate_dim=3` does not apply to"):
        integration.QdqbertCrossEncoder(checkpoints("reranker"), truncate_dim=3, check=False)


@pytest.mark.slow
def test_a_retriever_returns_what_the_reranker_chooses(checkpoints) -> None:
    from langchain_core.documents import Document
    from langchain_core.vectorstores import InMemoryVectorStore

    classic = pytest.importorskip("langchain_classic.retrievers")
    compressors = pytest.importorskip("langchain_classic.retrievers.document_compressors")
    embeddings = integration.QdqbertEmbeddings(checkpoints("sentence"), check=False)
    store = InMemoryVectorStore(embeddings)
    store.add_documents([Document(page_content=text) for text in TEXTS])
    model = integration.QdqbertCrossEncoder(checkpoints("reranker"), check=False)
    retriever = classic.ContextualCompressionRetriever(
        base_compressor=compressors.CrossEncoderReranker(model=model, top_n=2),
        base_retriever=store.as_retriever(search_kwargs={"k": 3}),
    )
    found = [each.page_content for each in retriever.invoke("the dog")]
    expected = model.model.rank("the dog", TEXTS, top_k=2, return_documents=True)
    assert found == [each["text"] for each in expected]
