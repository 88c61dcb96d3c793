"""A model of gliner2 in a server: entities, labels and decisions by the same model."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import qdqbert
from gliner2_models import save_gliner2
from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from serving_requests import answer, close, post

TEXT = "the house of the cat is in london"
LABELS = ["city", "animal"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = save_gliner2(tmp_path_factory.mktemp("gliner2") / "model")
    with (
        qdqbert.load(folder) as model,
        TestClient(build_app({"finder": model})) as client,
    ):
        yield model, client


def test_entities_are_the_answers_of_its_own_route(served) -> None:
    model, client = served
    expected = model(TEXT, LABELS, threshold=0.3)
    assert {each["label"] for each in expected} == {*LABELS}
    body = {"inputs": TEXT, "parameters": {"labels": LABELS, "threshold": 0.3}}
    for path in ("/entity-extraction", "/", "/models/finder", "/invocations"):
        close(answer(client, path, body), expected)
    body["parameters"]["multi_label"] = False
    close(answer(client, "/", body), model(TEXT, LABELS, threshold=0.3, multi_label=False))


def test_labels_and_decisions_have_routes_too(served) -> None:
    model, client = served
    given = {"candidate_labels": LABELS, "task_name": "topic"}
    expected = model.decide(TEXT, LABELS, task_name="topic")
    found = answer(client, "/zero-shot-classification", {"inputs": TEXT, "parameters": given})
    scores = {each["label"]: each["score"] for each in found}
    assert scores == pytest.approx(expected["probabilities"])
    question = {"type": "choice", "criteria": dict.fromkeys(LABELS)}
    body = {"state": TEXT, "questions": {"topic": question}}
    close(answer(client, "/v1/systemone", body)["answers"], {"topic": expected})


ORDER = {"order": ["item", "size::[small|large]", "number::str"]}


def test_structures_have_a_route(served) -> None:
    model, client = served
    options = {"threshold": 0.4, "include_confidence": True, "include_spans": True}
    expected = model.extract_json([TEXT, "a dog"], ORDER, **options)
    assert expected[0]["order"]
    body = {"inputs": [TEXT, "a dog"], "parameters": {"structures": ORDER, **options}}
    for path in ("/extract-json", "/"):
        close(answer(client, path, body), expected)
    field = {"name": "item", "dtype": "str", "description": "what is sold"}
    body = {"inputs": TEXT, "parameters": {"structures": {"order": [field]}}}
    close(answer(client, "/extract-json", body), model.extract_json(TEXT, {"order": [field]}))


@pytest.mark.parametrize(
    "fields",
    [
        [f"f{index}" for index in range(9)],
        ["size::[" + "|".join(f"c{index}" for index in range(8)) + "]::list::how large"],
        [{"name": "size", "dtype": "str", "choices": [f"c{index}" for index in range(8)]}],
        ["a", "b", {"name": "size", "choices": [*"cdefgh"], "description": "how large"}],
    ],
)
def test_fields_and_choices_count_as_labels(served, fields) -> None:
    body = {"inputs": TEXT, "parameters": {"structures": {"order": fields}}}
    for most, status in ((9, 200), (8, 413)):
        app = build_app({"finder": served[0]}, limits=Limits(max_texts=most))
        with TestClient(app) as client:
            response = post(client, "/extract-json", body)
            assert response.status_code == status
    assert response.json()["error"] == "A request may have 8 fields and choices, got 9."


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "`parameters.structures`: field required"),
        ({"structures": {"order": "item"}}, "parameters.structures"),
        ({"structures": {"order": []}}, "`structures`: 'order' has to be a list of fields"),
    ],
)
def test_wrong_structures_are_refused(served, parameters, message) -> None:
    response = post(served[1], "/extract-json", {"inputs": TEXT, "parameters": parameters})
    assert response.status_code == 422
    assert message in response.json()["error"]


def test_labels_and_options_of_a_request_are_limited_as_its_inputs_are(served) -> None:
    model, _ = served
    question = {"type": "choice", "criteria": {"a": None, "b": None}}
    bodies = {
        "/zero-shot-classification": {"inputs": TEXT, "parameters": {"candidate_labels": "a,b"}},
        "/v1/systemone": {"state": TEXT, "questions": {"q": question}},
        "/extract-json": {"inputs": TEXT, "parameters": {"structures": {"order": ["a", "b"]}}},
    }
    for most, status in ((1, 413), (3, 200)):
        with TestClient(build_app({"finder": model}, limits=Limits(max_texts=most))) as client:
            for path, body in bodies.items():
                assert post(client, path, body).status_code == status
