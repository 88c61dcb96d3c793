"""The page at `/`."""

from __future__ import annotations

import html
import json
import re
import shlex
import urllib.parse

import pytest
from starlette.testclient import TestClient

import qdqbert
from gliner2_models import save_gliner2
from qdqbert.serving.app import build_app
from serving_requests import answer


def calls(client, **headers) -> list[tuple[str, list[str], dict]]:
    """Return path, headers and body of each call of curl in the page."""
    response = client.get("/", headers=headers)
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    found = []
    for each in re.findall("<pre>(.*?)</pre>", response.text, re.DOTALL):
        _, url, *options = shlex.split(html.unescape(each).replace("\\\n", ""))
        pairs = zip(options[::2], options[1::2], strict=True)
        sent = [value for name, value in pairs if name == "-H"]
        found.append((urllib.parse.urlsplit(url).path, sent, json.loads(options[-1])))
    return found


def test_the_page_has_a_call_of_each_model_that_works(client, models) -> None:
    found = calls(client)
    assert len(found) == len(models)
    for name, (path, _, body) in zip(models, found, strict=True):
        assert path.startswith(f"/models/{name}/")
        answer(client, path, body)


def test_the_page_lists_all_routes(models, tmp_path) -> None:
    folder = save_gliner2(tmp_path / "schemas")
    with (
        qdqbert.load(folder, precision="float") as schemas,
        TestClient(build_app({**models, "schemas": schemas})) as client,
    ):
        text = client.get("/").text
        paths = client.get("/openapi.json").json()["paths"]
    for path, operations in paths.items():
        if not path.startswith("/models/"):
            (method,) = operations
            assert f"<code>{method.upper()} {path}</code>" in text


@pytest.mark.parametrize("name", ["<b>'s & model", "a b"])
def test_names_and_keys_are_part_of_the_calls(models, name) -> None:
    several = {name: models["embedder"], "other": models["tagger"]}
    with TestClient(build_app(several, api_key="secret")) as client:
        assert client.get("/").status_code == 401
        (path, headers, body), _ = calls(client, Authorization="Bearer secret")
        assert headers[0] == "Authorization: Bearer $QDQBERT_API_KEY"
        response = client.post(path, json=body, headers={"Authorization": "Bearer secret"})
        assert response.status_code == 200
        assert "<b>" not in client.get("/", headers={"Authorization": "Bearer secret"}).text


def test_a_single_model_needs_no_name(models) -> None:
    with TestClient(build_app({"filler": models["filler"]})) as client:
        ((path, _, body),) = calls(client)
        assert path == "/fill-mask"
        assert len(answer(client, path, body)) == 5
