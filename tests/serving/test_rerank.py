"""The routes of Jina and Cohere, with the requests of their clients."""

from __future__ import annotations

import numpy as np
import pytest

from serving_requests import TEXTS, answer, close, post


def ranked(models, documents=TEXTS) -> list[dict[str, float]]:
    scores = models["reranker"].predict([(TEXTS[0], each) for each in documents], activation="none")
    order = np.argsort(-scores, kind="stable").tolist()
    return [
        {"index": index, "relevance_score": 1 / (1 + float(np.exp(-scores[index])))}
        for index in order
    ]


@pytest.mark.parametrize(
    ("path", "fields", "has_documents"),
    [
        # Dify's provider for Jina sends `null`, and Open WebUI the number of documents.
        ("/v1/rerank", {"top_n": None}, True),
        ("/v1/rerank", {"top_n": 3}, True),
        ("/v1/rerank", {"return_documents": False, "truncation": True}, False),
        ("/v2/rerank", {"max_tokens_per_doc": 4096, "priority": 0}, False),
        # Voyage's names.
        ("/v1/rerank", {"top_k": 3, "truncation": True, "return_documents": True}, True),
        ("/v2/rerank", {"return_documents": True}, True),
        # vLLM's clients send 0 for all.
        ("/models/reranker/v1/rerank", {"top_n": 0}, True),
    ],
)
def test_documents_are_sorted(client, models, path, fields, has_documents) -> None:
    body = {"model": "reranker", "query": TEXTS[0], "documents": TEXTS, **fields}
    found = answer(client, path, body)
    documents = [each.pop("document", None) for each in found["results"]]
    close(found["results"], ranked(models))
    texts = [{"text": TEXTS[each["index"]]} for each in found["results"]]
    assert documents == (texts if has_documents else [None] * len(TEXTS))
    assert found["model"] == "reranker"
    assert found["usage"]["total_tokens"] == found["meta"]["tokens"]["input_tokens"] > len(TEXTS)


def test_the_best_documents_are_returned_alone(client, models) -> None:
    documents = [{"text": each, "id": number} for number, each in enumerate(TEXTS)]
    body = {"query": TEXTS[0], "documents": documents, "rank_fields": ["text"], "top_n": 2}
    found = answer(client, "/v1/rerank", body)["results"]
    assert [each["index"] for each in found] == [each["index"] for each in ranked(models)[:2]]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"documents": []}, 422, "documents"),
        ({"documents": [{"image": "x"}]}, 422, "documents"),
        ({"documents": None}, 422, "documents"),
        ({"rank_fields": ["title"]}, 422, "rank_fields"),
        ({"top_n": -1}, 422, "top_n"),
        ({"model": "rerank-v3.5"}, 404, "no model 'rerank-v3.5'"),
        ({"model": "embedder"}, 422, "for the task 'feature-extraction'"),
        ({"documents": ["cat " * 400], "truncate": False}, 413, "leave `truncate` out"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_errors_have_the_fields_that_clients_read(client, path, fields, status, message) -> None:
    body = {"model": "reranker", "query": "x", "documents": ["y"], **fields}
    response = post(client, path, body)
    assert response.status_code == status
    # Cohere's clients show the first, and those of Jina raise KeyError without the second.
    assert message in response.json()["message"]
    assert message in response.json()["detail"]
