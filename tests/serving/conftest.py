"""Models of all tasks, and a server with them."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import qdqbert
from gliner_models import save_gliner
from qdqbert.serving.app import build_app


@pytest.fixture(scope="package")
def models(quantized, tiny_artifact, tmp_path_factory):
    folders = {
        "embedder": quantized("sentence").directory,
        "sparse": quantized("sparse").directory,
        "classifier": tiny_artifact("AutoModelForSequenceClassification", num_labels=3)[1],
        "reranker": tiny_artifact("AutoModelForSequenceClassification", num_labels=1)[1],
        "tagger": tiny_artifact("AutoModelForTokenClassification")[1],
        "reader": tiny_artifact("AutoModelForQuestionAnswering")[1],
        "filler": tiny_artifact("AutoModelForMaskedLM")[1],
        "chooser": tiny_artifact("AutoModelForMultipleChoice")[1],
        "pairs": tiny_artifact("AutoModelForNextSentencePrediction")[1],
    }
    opened = {name: qdqbert.load(each, engine="onnxruntime") for name, each in folders.items()}
    finder = save_gliner(tmp_path_factory.mktemp("gliner") / "finder")
    opened["finder"] = qdqbert.load(finder, precision="float")
    yield opened
    for each in opened.values():
        each.close()


@pytest.fixture(scope="package")
def client(models):
    with TestClient(build_app(models), raise_server_exceptions=False) as made:
        yield made
