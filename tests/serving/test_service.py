"""How many inputs a request may have, whatever they are made of."""

from __future__ import annotations

import pytest
import transformers
from starlette.testclient import TestClient

import qdqbert
from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from serving_requests import TEXTS, post

MOST = 4
OTHER_FIELDS = {
    "rerank": {"query": "q"},
    "score": {"text_1": "q"},
    "extract": {"labels": ["a"]},
}


@pytest.fixture(scope="module")
def limited(models, tmp_path_factory, save_tiny):
    """A server with models of all tasks that takes few inputs in a request."""
    names = {"id2label": dict(enumerate(("contradiction", "neutral", "entailment")))}
    head = transformers.AutoModelForSequenceClassification
    folder = save_tiny(tmp_path_factory.mktemp("nli") / "nli", "bert", head, **names)
    with (
        qdqbert.load(folder, task="zero-shot-classification", precision="float") as nli,
        TestClient(build_app({**models, "nli": nli}, limits=Limits(max_texts=MOST))) as client,
    ):
        yield client


def labeled(texts: int, labels: int) -> dict[str, object]:
    given = {"candidate_labels": list("abcdefgh"[:labels])}
    return {"inputs": TEXTS[:1] * texts, "parameters": given}


def asked(*options: int) -> dict[str, object]:
    questions = {
        f"question {number}": {"type": "choice", "criteria": dict.fromkeys("abcdefgh"[:count])}
        for number, count in enumerate(options)
    }
    return {"state": TEXTS[0], "questions": questions}


def choices(inputs: int, each: int) -> dict[str, object]:
    return {"inputs": [{"context": TEXTS[0], "choices": ["it rains"] * each}] * inputs}


def entities(texts: int, labels: int) -> dict[str, object]:
    return {"inputs": TEXTS[:1] * texts, "parameters": {"labels": list("abcdefgh"[:labels])}}


@pytest.mark.parametrize(
    ("path", "fitting", "larger"),
    [
        ("nli/zero-shot-classification", labeled(2, 2), labeled(2, 3)),
        ("nli/zero-shot-classification", labeled(4, 1), labeled(1, 5)),
        ("nli", labeled(1, 4), labeled(3, 2)),
        ("nli/v1/systemone", asked(2, 2), asked(2, 3)),
        ("chooser/multiple-choice", choices(2, 2), choices(2, 3)),
        ("chooser", choices(1, 4), choices(1, 5)),
        # All labels are read with a text at once.
        ("finder/entity-extraction", entities(4, 4), entities(1, 5)),
        ("finder/api/extract", {"input": ["a"] * 4}, {"input": ["a"] * 5}),
        ("reranker/rerank", {"texts": ["a"] * 4}, {"texts": ["a"] * 5}),
        ("reranker/v1/rerank", {"documents": ["a"] * 4}, {"documents": ["a"] * 5}),
        ("reranker/score", {"text_2": ["a"] * 4}, {"text_2": ["a"] * 5}),
        ("embedder/score", {"text_2": ["a"] * 4}, {"text_2": ["a"] * 5}),
        (
            "embedder/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"] * 3}},
            {"inputs": {"source_sentence": "a", "sentences": ["b"] * 5}},
        ),
    ],
)
def test_what_a_model_runs_for_a_request_is_limited(limited, path, fitting, larger) -> None:
    others = OTHER_FIELDS.get(path.split("/")[-1], {})
    assert post(limited, f"/models/{path}", {**others, **fitting}).status_code == 200
    response = post(limited, f"/models/{path}", {**others, **larger})
    assert response.status_code == 413
    assert f"A request may have {MOST}" in response.text


def test_pairs_of_texts_and_labels_are_counted(limited) -> None:
    response = post(limited, "/models/nli/zero-shot-classification", labeled(2, 3))
    assert response.json()["error"] == (
        "A request may have 4 inputs, got 6. A text with each of its labels or choices is one."
    )
