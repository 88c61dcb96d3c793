"""The server in headless Chromium: its page, and requests of pages of other origins."""

from __future__ import annotations

import re

import numpy as np
import pytest
from starlette.testclient import TestClient

import qdqbert
from browsers import PHONE, SEND
from ports import free_port
from qdqbert.serving.app import build_app
from server_process import KEY, Server, running

pytestmark = pytest.mark.slow


@pytest.fixture
def page(models) -> str:
    """The page of a server with a key and a model with a long name."""
    several = {"a-model-with-a-long-name-" + "x" * 60: models["embedder"], "b": models["tagger"]}
    with TestClient(build_app(several, api_key=KEY)) as client:
        return client.get("/", headers={"Authorization": f"Bearer {KEY}"}).text


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_the_page_fits_the_window_and_loads_nothing(chromium, page, width, tmp_path) -> None:
    found = chromium.view(page, tmp_path, width=width)
    assert found["width"] == width
    assert found["content"] <= width
    assert found["loaded"] == 0
    assert found["console"] == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_has_no_faults_of_accessibility(chromium, page, dark, tmp_path) -> None:
    background = chromium.view(page, tmp_path, dark=dark)["background"]
    assert (sum(map(int, re.findall(r"\d+", background))) < 150) == dark
    for width in (PHONE, 1280):
        assert chromium.faults(page, tmp_path, dark=dark, width=width) == []


# A request with JSON and a key, which a browser asks about first.
REQUEST = """<!DOCTYPE html>
<script type="module">
SEND
const options = {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: "Bearer KEY" },
  body: JSON.stringify({ inputs: ["a dog"] }),
};
try {
  const response = await fetch("URL/embed", options);
  send({ status: response.status, answer: await response.json() });
} catch (error) {
  send({ refused: error.name });
}
</script>
"""


@pytest.fixture(scope="module")
def ask(chromium, tmp_path_factory):
    """A function that lets a page of a port of this machine ask a server."""
    folder = tmp_path_factory.mktemp("pages")

    def ask(server: Server, port: int):
        page = folder / "page.html"
        request = REQUEST.replace("SEND", SEND).replace("KEY", KEY).replace("URL", server.url)
        page.write_text(request)
        return chromium.visit(page, port=port).sent

    return ask


def test_pages_of_allowed_origins_get_answers_and_others_do_not(ask, quantized) -> None:
    allowed, other = free_port(), free_port()
    options = ["--engine", "onnxruntime", "--allow-origin", f"http://127.0.0.1:{allowed}"]
    with running(str(quantized("sentence").directory), *options) as server:
        found = ask(server, allowed)
        assert ask(server, other) == {"refused": "TypeError"}
    assert found["status"] == 200
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        np.testing.assert_allclose(found["answer"], model.encode(["a dog"]), atol=1e-5)


def test_pages_of_other_origins_are_refused_without_the_option(ask, quantized) -> None:
    with running(str(quantized("sentence").directory), "--engine", "onnxruntime") as server:
        assert ask(server, free_port()) == {"refused": "TypeError"}
