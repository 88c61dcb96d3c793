"""Routes of text-embeddings-inference that look at tokens, and its comparison of texts."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from starlette.testclient import TestClient

import qdqbert
from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from serving_requests import TEXTS, answer, close, post


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {"x": 1}}])
def test_similarity_is_the_cosine(client, models, parameters) -> None:
    vectors = models["embedder"].encode(TEXTS, normalize_embeddings=True)
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}, **parameters}
    close(answer(client, "/similarity", body), (vectors[1:] @ vectors[0]).tolist())


@pytest.mark.parametrize("options", [{}, {"prompt_name": "query"}])
def test_embed_sparse_returns_words_with_their_weights(models, client, options) -> None:
    expected = models["sparse"].encode(TEXTS, **options)
    found = answer(client, "/embed_sparse", {"inputs": TEXTS, **options})
    for index, rows in enumerate(found):
        row = expected.row(index)
        assert [each["index"] for each in rows] == row.indices.tolist()
        assert [each["value"] for each in rows] == pytest.approx(row.values.tolist(), abs=1e-5)
    assert answer(client, "/embed_sparse", {"inputs": TEXTS[0], **options}) == found[:1]


def test_embed_all_returns_the_states_of_tokens(models, client) -> None:
    expected = models["embedder"].encode(TEXTS, output_value="token_embeddings")
    found = answer(client, "/embed_all", {"inputs": TEXTS, "truncate": None})
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert len(answer(client, "/embed_all", {"inputs": TEXTS[0]})) == 1


@pytest.fixture(scope="module")
def multi_vector(quantized):
    """Return a multi-vector embedder, and a client of a server that has no other model."""
    with qdqbert.load(quantized("multi_vector").directory, engine="onnxruntime") as model:
        app = build_app({"colbert": model})
        with TestClient(app, raise_server_exceptions=False) as client:
            yield model, client


def test_embed_all_puts_the_named_prompt_before_documents(multi_vector, monkeypatch) -> None:
    model, client = multi_vector
    monkeypatch.setattr(model, "prompts", {"query": "the ", "passage": "a book "})
    for name, expected in (
        ("passage", model.encode(TEXTS, task="document", prompt="a book ")),
        # Names of kinds, of which there is no prompt.
        ("document", model.encode_document(TEXTS)),
        ("corpus", model.encode_document(TEXTS)),
    ):
        found = answer(client, "/embed_all", {"inputs": TEXTS, "prompt_name": name})
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)


def test_embed_all_returns_the_vectors_of_tokens(multi_vector) -> None:
    model, client = multi_vector
    for options, expected in (
        ({}, model.encode_document(TEXTS)),
        ({"prompt_name": "query"}, model.encode_query(TEXTS)),
    ):
        found = answer(client, "/embed_all", {"inputs": TEXTS, **options})
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
    left = answer(client, "/embed_all", {"inputs": ["x " * 90], "truncation_direction": "Left"})
    assert len(left[0]) == len(model.encode_document("x " * 90))


@pytest.mark.parametrize("raw_scores", [False, True])
def test_multi_vector_embedders_rank_by_max_sim(multi_vector, raw_scores) -> None:
    model, client = multi_vector
    expected = model.rank(TEXTS[0], TEXTS)
    body = {"query": TEXTS[0], "texts": TEXTS, "raw_scores": raw_scores}
    found = answer(client, "/rerank", body)
    assert [each["index"] for each in found] == [each["corpus_id"] for each in expected]
    close([each["score"] for each in found], [each["score"] for each in expected])
    body = {"query": TEXTS[0], "documents": TEXTS, "top_n": 1}
    (best,) = answer(client, "/v1/rerank", body)["results"]
    close(best["relevance_score"], expected[0]["score"])


def test_tokens_have_their_places_in_the_text(client, models) -> None:
    text = "the cat sät on the book"
    (whole,) = answer(client, "/models/tagger/tokenize", {"inputs": text})
    tokenizer = models["tagger"]._loaded.tokenizer
    assert [each["id"] for each in whole] == tokenizer.encode(text).ids
    first, *own, last = whole
    for special in (first, last):
        assert special["special"]
        assert special["start"] is special["stop"] is None
    for each in own:
        assert not each["special"]
        assert each["text"] == text[each["start"] : each["stop"]]
    body = {"inputs": [text, text], "add_special_tokens": False}
    assert answer(client, "/models/tagger/tokenize", body) == [own, own]


def test_prompts_are_tokenized_if_they_are_named(models, monkeypatch) -> None:
    embedder = models["embedder"]
    monkeypatch.setattr(embedder, "prompts", {"query": "the dog "})
    with TestClient(build_app({"embedder": embedder})) as client:
        plain = answer(client, "/tokenize", {"inputs": "the dog a cat"})
        prompted = answer(client, "/tokenize", {"inputs": "a cat", "prompt_name": "query"})
        assert prompted == plain
        unknown = post(client, "/tokenize", {"inputs": "x", "prompt_name": "none"})
        assert unknown.status_code == 422
        assert "the model has: 'query'" in unknown.json()["error"]


def test_decode_makes_texts_of_token_ids(client, models) -> None:
    tokenizer = models["tagger"]._loaded.tokenizer
    ids = [tokenizer.encode(each).ids for each in TEXTS]
    path = "/models/tagger/decode"
    expected = [tokenizer.decode(each, skip_special=True) for each in ids]
    assert answer(client, path, {"ids": ids}) == expected
    assert answer(client, path, {"ids": ids[0], "skip_special_tokens": None}) == expected[:1]
    (whole,) = answer(client, path, {"ids": ids[0], "skip_special_tokens": False})
    assert whole == tokenizer.decode(ids[0]) != expected[0]
    assert answer(client, path, {"ids": []}) == [""]


@pytest.mark.parametrize(
    "ids", ["[-1]", "[9999999]", "[4294967296]", f"[1{'0' * 400}]", "[[1], [1, -5]]"]
)
def test_ids_that_the_tokenizer_does_not_have_are_refused(client, ids) -> None:
    headers = {"content-type": "application/json"}
    response = client.post("/models/tagger/decode", content=f'{{"ids": {ids}}}', headers=headers)
    assert response.status_code == 422
    assert "has no token" in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/decode", {"ids": [1.5]}),
        ("/decode", {"ids": [True]}),
        ("/decode", {"ids": [[1], 2]}),
        ("/decode", {"ids": None}),
        ("/tokenize", {"inputs": []}),
        ("/tokenize", {"inputs": [1]}),
        ("/embed_all", {"inputs": [[]]}),
        ("/similarity", {"inputs": {"source_sentence": "x", "sentences": []}}),
        ("/similarity", {"inputs": "x"}),
    ],
)
def test_other_bodies_are_refused(client, path, body) -> None:
    response = client.post(f"/models/embedder{path}", content=json.dumps(body))
    assert response.status_code == 422
    assert response.json()["error_type"] == "Validation"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {"inputs": ["cat " * 9, "cat " * 9]}, "50 characters"),
        ("/decode", {"ids": [[5] * 8, [5] * 8]}, "50 characters"),
        ("/embed_all", {"inputs": ["cat"] * 9}, "the states of 50 tokens, and these texts may"),
    ],
)
def test_requests_have_limits(models, path, body, message) -> None:
    limits = dataclasses.replace(Limits(), max_read_characters=50, max_states=50)
    with TestClient(build_app({"embedder": models["embedder"]}, limits=limits)) as client:
        response = post(client, path, body)
    assert response.status_code == 413
    assert message in response.text
