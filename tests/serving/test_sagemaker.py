"""What SageMaker asks of a container."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from qdqbert.serving.app import build_app
from serving_requests import TEXTS, answer, post


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("embedder", "/embed", {"inputs": TEXTS}),
        ("reranker", "/rerank", {"query": TEXTS[0], "texts": TEXTS}),
        ("classifier", "/predict", {"inputs": TEXTS[0]}),
        ("tagger", "/token-classification", {"inputs": TEXTS[0]}),
    ],
)
def test_invocations_are_answered_as_the_route_of_the_model(models, name, path, body) -> None:
    with TestClient(build_app({name: models[name]}, api_key=None)) as client:
        assert client.get("/ping").status_code == 200
        assert answer(client, "/invocations", body) == answer(client, path, body)
        described = client.get("/openapi.json").json()["paths"]
        assert (
            described["/invocations"]["post"]["requestBody"]
            == (described[path]["post"]["requestBody"])
        )
        assert post(client, "/invocations", {}).status_code == 422


def test_several_models_have_no_invocations(client) -> None:
    assert post(client, "/invocations", {"inputs": "x"}).status_code == 404


def test_a_ping_needs_no_key(models) -> None:
    app = build_app({"embedder": models["embedder"]}, api_key="secret")
    with TestClient(app) as client:
        assert client.get("/ping").status_code == 200
        assert post(client, "/invocations", {"inputs": "x"}).status_code == 401
