"""Decisions over HTTP, as `transformers serve` answers them."""

from __future__ import annotations

import json

import pytest
import transformers
from starlette.testclient import TestClient

import qdqbert
from qdqbert.serving.app import build_app
from serving_requests import answer, close, post

QUESTIONS = {
    "tone": {"type": "choice", "criteria": {"calm": "a nice book", "angry": None}},
    "level": {"type": "score", "criteria": ["rain", "music"], "instructions": "How?"},
    "refund": {"type": "noul", "criteria": {"true": "a dog"}},
}


@pytest.fixture(scope="module", params=["text-classification", "zero-shot-classification"])
def served(request, tmp_path_factory, save_tiny):
    names = {"id2label": dict(enumerate(("contradiction", "neutral", "entailment")))}
    head = transformers.AutoModelForSequenceClassification
    folder = save_tiny(tmp_path_factory.mktemp("nli") / "nli", "bert", head, **names)
    with (
        qdqbert.load(folder, task=request.param, precision="float") as model,
        TestClient(build_app({"nli": model})) as client,
    ):
        yield model, client


@pytest.mark.parametrize("state", ["the cat", {"text": "the cat", "size": 3}, ["the", "cat"]])
def test_questions_get_the_decisions_of_the_model(served, state) -> None:
    model, client = served
    found = answer(
        client, "/v1/systemone", {"model": "any", "state": state, "questions": QUESTIONS}
    )
    text = state if isinstance(state, str) else json.dumps(state)
    close(found["answers"], model.decide(text, questions=QUESTIONS))
    assert found["model"] == "nli"
    assert found["usage"]["input_tokens"] > 0
    assert found["usage"]["output_tokens"] == 0


def test_options_of_decisions_are_those_of_the_model(served) -> None:
    model, client = served
    options = {"temperature": 9.0, "threshold": 1.0, "entailment_label": "neutral"}
    body = {"state": "the cat", "questions": QUESTIONS}
    found = answer(client, "/v1/systemone", {**body, **options})["answers"]
    close(found, model.decide("the cat", questions=QUESTIONS, **options))
    assert found["tone"]["choice"] is None
    response = post(client, "/v1/systemone", {**body, "temperature": 0})
    assert response.status_code == 422
    assert "`temperature` has to be" in response.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"state": "a", "questions": {}}, "questions"),
        ({"state": "a", "questions": {"b": {"type": "essay"}}}, "choice, score, noul"),
        ({"state": "a", "questions": QUESTIONS, "assets": {"c": {"type": "image"}}}, "assets"),
        ({"questions": QUESTIONS}, "state"),
    ],
)
def test_wrong_requests_are_refused(served, body, message) -> None:
    response = post(served[1], "/v1/systemone", body)
    assert response.status_code == 422
    assert message in response.text
