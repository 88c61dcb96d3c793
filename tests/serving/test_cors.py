"""What browsers ask before a page may use the server."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from qdqbert.common.errors import UserInputError
from qdqbert.serving.app import build_app
from qdqbert.serving.options import ServerOptions
from serving_requests import post

ORIGIN = "https://example.org"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


@pytest.fixture
def serve(models):
    clients = []

    def serve(*origins: str) -> TestClient:
        app = build_app({"embedder": models["embedder"]}, api_key="secret", allow_origin=origins)
        clients.append(TestClient(app).__enter__())
        return clients[-1]

    yield serve
    for each in clients:
        each.__exit__()


@pytest.mark.parametrize(("origins", "allowed"), [(("https://a.b", ORIGIN), ORIGIN), ("*", "*")])
def test_pages_of_allowed_origins_may_read_responses(serve, origins, allowed) -> None:
    client = serve(*origins)
    asked = client.options("/embed", headers=PREFLIGHT)
    assert asked.status_code == 204
    assert asked.headers["Access-Control-Allow-Origin"] == allowed
    assert asked.headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert (
        asked.headers["Access-Control-Allow-Headers"]
        == (PREFLIGHT["Access-Control-Request-Headers"])
    )
    headers = {"Origin": ORIGIN, "Authorization": "Bearer secret"}
    # A page has to be able to read why a request was refused.
    for sent, status in ((headers, 200), ({"Origin": ORIGIN}, 401)):
        response = post(client, "/embed", {"inputs": "x"}, headers=sent)
        assert response.status_code == status
        assert response.headers["Access-Control-Allow-Origin"] == allowed
        assert "X-Truncated-Inputs" in response.headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Origin" not in client.get("/health").headers


def test_other_origins_get_no_permission(serve) -> None:
    client = serve("https://a.b")
    for response in (
        client.options("/embed", headers=PREFLIGHT),
        client.get("/health", headers={"Origin": ORIGIN}),
    ):
        assert "Access-Control-Allow-Origin" not in response.headers
        assert "Access-Control-Allow-Headers" not in response.headers
        assert response.headers["Vary"] == "Origin"


def test_without_the_option_nobody_gets_permission(serve) -> None:
    client = serve()
    headers = {**PREFLIGHT, "Authorization": "Bearer secret"}
    assert client.options("/embed", headers=headers).status_code == 405
    assert "Access-Control-Allow-Origin" not in client.get("/health", headers=headers).headers


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://", "null"])
def test_origins_are_checked(origin) -> None:
    with pytest.raises(UserInputError, match=f"'{origin}'` is no origin"):
        ServerOptions(models=("x",), allow_origin=[ORIGIN, origin])
