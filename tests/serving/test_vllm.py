"""Scores of pairs, with vLLM's requests."""

from __future__ import annotations

import numpy as np
import pytest
from starlette.testclient import TestClient

from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from serving_requests import TEXTS, answer, close, post


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "fields",
    [
        {"text_1": TEXTS[0], "text_2": TEXTS},
        {"queries": [TEXTS[0]], "documents": TEXTS, "truncate_prompt_tokens": None},
        {"data_1": [TEXTS[0]] * 3, "data_2": TEXTS, "encoding_format": "float"},
    ],
)
def test_a_reranker_scores_pairs(client, models, path, fields) -> None:
    pairs = [(TEXTS[0], each) for each in TEXTS]
    for options, activation in ({}, None), ({"use_activation": False}, "none"):
        found = answer(client, path, {"model": "reranker", **fields, **options})
        expected = models["reranker"].predict(pairs, activation=activation).tolist()
        close([each["score"] for each in found["data"]], expected)
        assert [each["index"] for each in found["data"]] == [0, 1, 2]
        assert {each["object"] for each in found["data"]} == {"score"}
    assert found["model"] == "reranker"
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > len(TEXTS)


def test_an_embedder_scores_pairs_by_the_cosine(client, models) -> None:
    vectors = models["embedder"].encode(TEXTS, normalize_embeddings=True)
    body = {"model": "embedder", "text_1": TEXTS, "text_2": TEXTS[::-1]}
    found = answer(client, "/score", body)["data"]
    expected = np.sum(vectors * vectors[::-1], axis=1).tolist()
    close([each["score"] for each in found], expected)


@pytest.mark.parametrize("name", ["reranker", "embedder"])
def test_pairs_are_limited(models, name) -> None:
    with TestClient(build_app({name: models[name]}, limits=Limits(max_texts=10))) as client:
        response = post(client, "/score", {"text_1": "a", "text_2": ["b"] * 11})
    assert response.status_code == 413
    assert "10 inputs, got 11" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"text_1": ["a", "b"], "text_2": ["c"]}, 422, "`text_1` has 2 texts and `text_2` 1"),
        ({"text_1": [], "text_2": "c"}, 422, "text_1"),
        ({"text_1": "a"}, 422, "text_2"),
        ({"text_1": "a", "text_2": "b", "model": "tagger"}, 422, "token-classification"),
    ],
)
def test_errors_are_those_of_openai(client, fields, status, message) -> None:
    response = post(client, "/score", {"model": "reranker", **fields})
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
