"""Entities of labels of a request, in the form of Hugging Face's API and of Ollama's proposal."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import qdqbert
from gliner_models import save_gliner
from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from serving_requests import answer, close, post

TEXTS = ["the house of the cat is in london", "new york-city is great; books"]
LABELS = ["city", "animal"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = save_gliner(tmp_path_factory.mktemp("gliner") / "model")
    with (
        qdqbert.load(folder) as model,
        TestClient(build_app({"finder": model})) as client,
    ):
        yield model, client


@pytest.mark.parametrize(
    "options", [{}, {"threshold": 0.2}, {"threshold": 0.2, "flat_ner": False, "multi_label": True}]
)
def test_labels_of_a_request_are_found(options, served) -> None:
    model, client = served
    expected = model(TEXTS, LABELS, **options)
    parameters = {"labels": LABELS, **options}
    for path in ("/entity-extraction", "/", "/models/finder", "/invocations"):
        close(answer(client, path, {"inputs": TEXTS, "parameters": parameters}), expected)
    close(
        answer(client, "/entity-extraction", {"inputs": TEXTS[0], "parameters": parameters}),
        expected[0],
    )


def test_descriptions_of_labels_are_read(served) -> None:
    model, client = served
    labels = {"place": "a city or a house"}
    body = {"inputs": TEXTS[0], "parameters": {"labels": labels, "threshold": 0.2}}
    close(answer(client, "/entity-extraction", body), model(TEXTS[0], labels, threshold=0.2))


def test_the_route_that_is_proposed_for_ollama_answers(served) -> None:
    model, client = served
    body = {"model": "finder", "input": TEXTS[0], "labels": LABELS, "threshold": 0.2}
    found = answer(client, "/api/extract", body)
    close(found["entities"], model(TEXTS[0], LABELS, threshold=0.2))
    assert found["model"] == "finder"
    assert found["prompt_eval_count"] > len(TEXTS[0].split())
    several = answer(client, "/api/extract", {**body, "input": TEXTS, "threshold": None})
    close(several["entities"], model(TEXTS, LABELS))


def test_a_server_says_how_far_int8_is_from_float(served) -> None:
    model, client = served
    (info,) = client.get("/info").json()["models"]
    facts = model.facts
    assert facts["changed_entities"].count(" of ") == 1
    assert {name: info[name] for name in facts} == facts


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/entity-extraction", {"inputs": "a"}, "parameters"),
        ("/entity-extraction", {"inputs": "a", "parameters": {"threshold": 0.5}}, "labels"),
        (
            "/entity-extraction",
            {"inputs": "a", "parameters": {"labels": [3]}},
            "`parameters.labels.0`: input should be a valid string.",
        ),
        (
            "/entity-extraction",
            {"inputs": "a", "parameters": {"labels": "b"}},
            "`parameters.labels`: input should be a valid array, or input should be an object.",
        ),
        ("/api/extract", {"input": "a"}, "labels"),
        ("/api/extract", {"input": "a", "labels": ["b"], "threshold": 1}, "threshold"),
    ],
)
def test_wrong_requests_are_refused(path, body, message, served) -> None:
    response = post(served[1], path, body)
    assert response.status_code == 422
    assert message in response.text


def test_labels_of_a_request_are_limited_as_its_inputs_are(served) -> None:
    model, _ = served
    inputs = {"inputs": TEXTS[0]}
    bodies = {
        "/entity-extraction": {**inputs, "parameters": {"labels": ["a", "b", "c"]}},
        "/api/extract": {"input": TEXTS[0], "labels": ["a", "b", "c"]},
    }
    with TestClient(build_app({"finder": model}, limits=Limits(max_texts=2))) as client:
        for path, body in bodies.items():
            response = post(client, path, body)
            assert response.status_code == 413
            assert response.json()["error"] == "A request may have 2 labels, got 3."
        few = {**inputs, "parameters": {"labels": {"a": "b", "c": "d, e, f"}}}
        assert post(client, "/entity-extraction", few).status_code == 200
