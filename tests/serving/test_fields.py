"""Fields of protocols that change an answer are served, or refused with status 422."""

from __future__ import annotations

import base64
import json
import math
import shutil

import numpy as np
import pytest
import transformers
from starlette.testclient import TestClient

import qdqbert
from protocol_fields import CONTRADICTIONS, FIELDS, LONG, PARAMETERS
from qdqbert.serving.app import build_app
from serving_requests import TEXTS, answer, close, post

PROMPTS = {"query": "find: ", "passage": "read: ", "clustering": "group: "}
PAIR = ("/v1/embeddings", "input"), ("/embeddings", "input")


@pytest.fixture(scope="module")
def prompted(quantized):
    """An embedder with prompts, and a server with it."""
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        model.prompts = dict(PROMPTS)
        with TestClient(build_app({"embedder": model})) as client:
            yield model, client


@pytest.mark.parametrize("name", ["document", "passage"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        *(({"input_type": kind}, "find: ") for kind in ("query", "search_query")),
        # That of `encode_document`.
        *(({"input_type": kind}, "document") for kind in ("document", "search_document")),
        ({"input_type": "passage"}, "read: "),
        ({"input_type": "clustering"}, "group: "),
        ({"prompt_name": "clustering"}, "group: "),
        ({"task": "retrieval.query"}, "find: "),
        ({"task": "retrieval.passage", "input_type": "passage"}, "read: "),
        ({"input_type": None, "task": None, "prompt_name": None}, ""),
    ],
)
def test_kinds_of_texts_have_their_prompts(prompted, fields, expected, name, monkeypatch) -> None:
    model, client = prompted
    prompts = {name if own == "passage" else own: text for own, text in PROMPTS.items()}
    monkeypatch.setattr(model, "prompts", prompts)
    if expected == "document":
        vectors = model.encode_document(TEXTS).tolist()
        close(vectors, model.encode(TEXTS, prompt=prompts.get("document", "")).tolist())
    else:
        vectors = model.encode(TEXTS, prompt=expected).tolist()
    for path, inputs in PAIR:
        found = answer(client, path, {inputs: TEXTS, **fields})["data"]
        close([each["embedding"] for each in found], vectors)
    if not fields.keys() - {"input_type"}:
        for version in (1, 2):
            found = answer(client, f"/v{version}/embed", {"texts": TEXTS, **fields})["embeddings"]
            close(found if version == 1 else found["float"], vectors)


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/embeddings", {"input_type": "classification"}, "input_type"),
        ("/v1/embeddings", {"prompt_name": "none"}, "prompt"),
        ("/v1/embeddings", {"prompt_name": "query", "input_type": "document"}, "prompt_name"),
        ("/v1/embeddings", {"late_chunking": True}, "late_chunking"),
        ("/v1/embeddings", {"return_multivector": True}, "return_multivector"),
        ("/v1/embeddings", {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"add_special_tokens": False}, "add_special_tokens"),
        ("/v1/embeddings", {"messages": []}, "messages"),
        ("/v1/embeddings", {"output_dimension": 4, "dimensions": 5}, "output_dimension"),
        ("/v1/embeddings", {"output_dimension": 4000}, "dimensions"),
        *(
            ("/v1/embeddings", {"normalized": False, "output_dtype": dtype}, "normalized")
            for dtype in ("float", "int8", "binary")
        ),
        ("/embed", {"input_type": "query"}, "input_type"),
        ("/embed", {"parameters": {"normalize": False}}, "parameters"),
        ("/v1/embed", {"images": ["x"]}, "images"),
        ("/v2/embed", {"input_type": "image"}, "input_type"),
        ("/api/embed", {"options": {"num_ctx": 8}}, "options"),
    ],
)
def test_what_is_not_served_is_refused_by_name(prompted, path, fields, named) -> None:
    names = {"/v1/embed": "texts", "/v2/embed": "texts", "/embed": "inputs"}
    response = post(prompted[1], path, {names.get(path, "input"): ["a"], **fields})
    assert response.status_code in (400, 422)
    assert named in response.text


@pytest.mark.parametrize(
    "fields",
    [
        {"late_chunking": False, "return_multivector": False, "normalized": True},
        {"truncate_prompt_tokens": -1, "add_special_tokens": True, "user": "me", "unknown": 1},
        {"truncate": "END", "encoding_format": "float", "embedding_type": "float"},
        {"output_dtype": "float32", "embedding_type": "float", "embed_dtype": "float32"},
        {"truncation": True, "truncate": "END", "truncation_side": "right"},
        {"endianness": "little", "use_activation": True, "padding": "do_not_pad"},
    ],
)
def test_values_that_change_nothing_are_taken(prompted, fields) -> None:
    model, client = prompted
    (found,) = answer(client, "/v1/embeddings", {"input": "a dog", **fields})["data"]
    close(found["embedding"], model.encode("a dog").tolist())


def test_sizes_and_encodings_have_the_names_of_each_service(prompted) -> None:
    model, client = prompted
    full = model.encode("a dog")
    cut = full[:6] / np.linalg.norm(full[:6])
    bits = model.encode("a dog", output_dtype="ubinary")
    for fields, expected in (
        ({"dimensions": 6}, cut),
        ({"output_dimension": 6}, cut),
        ({"embedding_type": "ubinary"}, bits),
        ({"output_dtype": "ubinary"}, bits),
    ):
        (found,) = answer(client, "/v1/embeddings", {"input": "a dog", **fields})["data"]
        np.testing.assert_allclose(found["embedding"], expected, atol=1e-5)
    for fields in ({"embedding_type": "base64"}, {"encoding_format": "base64"}):
        (found,) = answer(client, "/v1/embeddings", {"input": "a dog", **fields})["data"]
        raw = np.frombuffer(base64.b64decode(found["embedding"]), np.float32)
        np.testing.assert_allclose(raw, full, atol=1e-5)
    body = {"texts": ["a dog"], "embedding_types": ["float", "ubinary"], "output_dimension": 6}
    found = answer(client, "/v1/embed", body)
    assert found["response_type"] == "embeddings_by_type"
    np.testing.assert_allclose(found["embeddings"]["float"][0], cut, atol=1e-5)
    assert len(found["embeddings"]["ubinary"][0]) == 1
    found = answer(client, "/api/embed", {"input": ["a dog"], "model": "x", "dimensions": 6})
    np.testing.assert_allclose(found["embeddings"][0], cut, atol=1e-5)
    assert found["prompt_eval_count"] > 2


def test_the_start_of_inputs_can_be_cut_off(prompted) -> None:
    _, client = prompted
    long = "music " * 400 + "dog"
    ends = [
        answer(client, "/v1/embeddings", {"input": long, "truncate": end})["data"][0]["embedding"]
        for end in (True, "END", "START")
    ]
    close(ends[0], ends[1])
    assert np.abs(np.subtract(ends[0], ends[2])).max() > 1e-3
    response = post(client, "/v1/embeddings", {"input": long, "truncate": "NONE"})
    assert response.status_code == 413


# All fields of all protocols.


@pytest.fixture(scope="module")
def prompted_client(models, prompted):
    """A server with models of all tasks, and an embedder that has prompts."""
    app = build_app({**models, "embedder": prompted[0]})
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(("path", "body", "fields"), FIELDS)
def test_each_field_changes_the_answer_or_is_refused(prompted_client, path, body, fields) -> None:
    # Without what differs from call to call.
    changing = {"id": None, "created": None, "total_duration": None}

    def content(**given):
        response = post(prompted_client, path, {**body, **given})
        found = response.json()
        return response.status_code, {**found, **changing} if isinstance(found, dict) else found

    usual = content()
    assert usual[0] == 200
    assert content(**dict.fromkeys(fields)) == usual
    for name, values in fields.items():
        for value in values:
            status, found = content(**{name: value})
            assert status in (200, 413, 422), (name, value)
            assert found != usual[1], (name, value)


@pytest.mark.parametrize(("path", "body", "fields"), FIELDS)
def test_a_number_that_is_not_one_is_no_error_of_the_server(client, path, body, fields) -> None:
    """Python's clients send it."""

    def status(**given: float) -> int:
        return client.post(path, content=json.dumps({**body, **given})).status_code

    assert status(unknown=math.nan) == 200
    assert {status(**{each: math.nan}) for each in (*body, *fields)} <= {200, 422}


@pytest.mark.parametrize(("path", "inputs", "parameters"), PARAMETERS)
def test_parameters_are_read_at_the_root_too(prompted_client, path, inputs, parameters) -> None:
    usual = answer(prompted_client, path, {"inputs": inputs})
    nothing = {**dict.fromkeys(parameters), "parameters": dict.fromkeys(parameters)}
    assert answer(prompted_client, path, {"inputs": inputs, **nothing}) == usual
    assert answer(prompted_client, path, {"inputs": inputs, "parameters": None}) == usual
    for name, value in parameters.items():
        inside = post(prompted_client, path, {"inputs": inputs, "parameters": {name: value}})
        beside = post(prompted_client, path, {"inputs": inputs, name: value})
        assert (beside.status_code, beside.json()) == (inside.status_code, inside.json())
    last = {"inputs": inputs, **parameters, "parameters": {}}
    assert answer(prompted_client, path, last) != usual


@pytest.mark.parametrize(("path", "fields"), CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_refused_by_name(client, path, fields) -> None:
    bodies = {each: body for each, body, _ in FIELDS}
    bodies |= {each: {"inputs": inputs} for each, inputs, _ in PARAMETERS}
    response = post(client, path, {**bodies[path], **fields})
    assert response.status_code == 422
    for name in fields.keys() - {"parameters"}:
        assert f"`{name}`" in response.text


def test_embeddings_can_be_base64_on_each_route(client, models) -> None:
    expected = models["embedder"].encode("a dog", normalize_embeddings=True)
    (found,) = answer(client, "/embed", {"inputs": "a dog", "encoding_format": "base64"})
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(found), "<f4"), expected, atol=1e-5)


def test_each_name_of_the_end_that_is_cut_off_means_the_same(client) -> None:
    def ranked(path, **fields):
        found = answer(client, path, {"query": "a", "documents": [LONG], **fields})
        return found["results"]

    for path in ("/rerank", "/v1/rerank"):
        path = f"/models/reranker{path}"
        left = ranked(path, truncation_direction="Left")
        close(ranked(path, truncation_side="left"), left)
        assert ranked(path) != left


def test_options_of_ollama_may_be_null(client) -> None:
    body = {"input": "a dog", "model": "embedder"}
    found = answer(client, "/api/embed", {**body, "options": {"temperature": None}})
    assert found["embeddings"] == answer(client, "/api/embed", body)["embeddings"]


def test_old_clients_of_ollama_get_what_the_model_makes(client, models) -> None:
    body = {"model": "embedder", "prompt": "a dog", "keep_alive": "5m", "options": {}}
    found = answer(client, "/api/embeddings", body)
    close(found, {"embedding": models["embedder"].encode("a dog").tolist()})
    # They load a model so.
    assert answer(client, "/api/embeddings", {"model": "embedder"}) == {"embedding": []}
    refused = post(client, "/api/embeddings", {**body, "options": {"num_ctx": 8}})
    assert refused.status_code == 422
    assert "options" in refused.text


@pytest.mark.parametrize(
    "content",
    [
        '{"inputs": "a", "inputs": "b"}',
        '{"inputs": "a", "x": {"y": 1, "y": 1}}',
        '{"inputs": "a", "x": 1, "x": 1}',
    ],
)
@pytest.mark.parametrize("path", ["/embed", "/models/embedder"])
def test_a_field_that_is_there_twice_is_refused(client, path, content) -> None:
    response = client.post(path, content=content)
    assert response.status_code == 422
    assert "is there twice" in response.json()["error"]


# The address of a server or a model.


@pytest.mark.parametrize(
    ("name", "body", "path"),
    [
        ("embedder", {"inputs": TEXTS}, "embed"),
        (
            "embedder",
            {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}},
            "similarity",
        ),
        ("reranker", {"query": TEXTS[0], "texts": TEXTS}, "rerank"),
        ("classifier", {"inputs": TEXTS[0], "parameters": {"top_k": 2}}, "text-classification"),
        ("classifier", {"inputs": [TEXTS[:2]]}, "predict"),
        ("tagger", {"inputs": TEXTS[0]}, "token-classification"),
        (
            "reader",
            {"inputs": {"question": "where", "context": "the cat sat"}},
            "question-answering",
        ),
    ],
)
def test_an_address_alone_is_that_of_the_task(client, models, name, body, path) -> None:
    expected = answer(client, f"/models/{name}/{path}", body)
    for address in (f"/models/{name}", f"/models/{name}/"):
        close(answer(client, address, body), expected)
    with TestClient(build_app({name: models[name]})) as alone:
        close(answer(alone, "/", body), expected)
        assert alone.get("/").headers["content-type"].startswith("text/html")
        assert post(alone, "/", {"nothing": 1}).status_code == 422


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, "text-classification"),
        ({"top_k": 1}, "text-classification"),
        ({"user": "me"}, "text-classification"),
        ({"raw_scores": True}, "predict"),
        ({"truncate": True, "user": "me"}, "predict"),
        ({"raw_scores": True, "top_k": 1}, "predict"),
    ],
)
def test_the_fields_of_a_request_decide_what_an_address_alone_means(client, fields, path) -> None:
    # Two texts of one route, and a pair of the other.
    body = {"inputs": ["a dog", "a cat"], **fields}
    expected = answer(client, f"/models/classifier/{path}", body)
    close(answer(client, "/models/classifier", body), expected)
    three = {"inputs": ["a", "b", "c"], **fields}
    status = 200 if path == "text-classification" else 422
    assert post(client, "/models/classifier", three).status_code == status


def test_a_slash_at_either_end_does_not_count(client) -> None:
    body = {"input": "a dog", "model": "embedder"}
    expected = answer(client, "/v1/embeddings", body)
    for path in ("/v1/embeddings/", "//v1/embeddings"):
        assert answer(client, f"http://testserver{path}", body) == expected


def test_infinity_names_texts_documents(client) -> None:
    body = {"query": TEXTS[0], "documents": TEXTS, "top_n": 2}
    found = answer(client, "/rerank", body)["results"]
    expected = answer(client, "/v1/rerank", body)["results"]
    close(found, expected)
    assert post(client, "/rerank", {"query": "a"}).status_code == 422
    assert post(client, "/rerank", {**body, "texts": TEXTS}).status_code == 422


def test_voyage_reads_data(client) -> None:
    body = {"model": "reranker", "query": TEXTS[0], "documents": TEXTS, "return_documents": True}
    found = answer(client, "/v1/rerank", body)
    for one, other in zip(found["data"], found["results"], strict=True):
        assert one == {**other, "document": other["document"]["text"]}


# Classes.


def test_predict_takes_the_parameters_of_hugging_face(client, models) -> None:
    parameters = {"top_k": 1, "function_to_apply": "sigmoid"}
    found = answer(client, "/models/classifier/predict", {"inputs": "a", "parameters": parameters})
    close(found, models["classifier"](["a"], **parameters)[0])


@pytest.mark.parametrize(
    "body", [{"parameters": {"candidate_labels": ["a"]}}, {"candidate_labels": ["a"]}]
)
def test_predict_refuses_other_labels(client, body) -> None:
    response = post(client, "/models/classifier/predict", {"inputs": "a", **body})
    assert response.status_code == 422


@pytest.fixture(scope="module")
def of_entailment(tiny_artifact, tmp_path_factory):
    """A checkpoint whose classes are those of entailment, and a server with it."""
    checkpoint, folder = tiny_artifact("AutoModelForSequenceClassification", num_labels=3)
    names = {"id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"}}
    names["label2id"] = {name: int(index) for index, name in names["id2label"].items()}
    root = tmp_path_factory.mktemp("nli")
    made = []
    for path in (checkpoint, folder):
        copy = root / path.name
        shutil.copytree(path, copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, **names}))
        made.append(copy)
    with (
        qdqbert.load(made[1], engine="onnxruntime") as model,
        TestClient(build_app({"nli": model})) as client,
    ):
        yield transformers.pipeline("zero-shot-classification", str(made[0])), client, made[1]


@pytest.mark.parametrize(
    "options", [{}, {"multi_label": True}, {"hypothesis_template": "It is about {}."}]
)
def test_labels_of_a_request_get_the_scores_of_the_pipeline(of_entailment, options) -> None:
    pipeline, client, _ = of_entailment
    labels = ["music", "a dog", "rain"]
    body = {"inputs": TEXTS[0], "parameters": {"candidate_labels": labels, **options}}
    expected = pipeline(TEXTS[0], candidate_labels=labels, **options)
    found = answer(client, "/zero-shot-classification", body)
    assert [each["label"] for each in found] == expected["labels"]
    np.testing.assert_allclose([each["score"] for each in found], expected["scores"], atol=1e-5)


def test_labels_of_a_request_need_a_class_of_entailment(client) -> None:
    body = {"inputs": "a", "parameters": {"candidate_labels": ["b"]}}
    response = post(client, "/models/classifier/zero-shot-classification", body)
    assert response.status_code == 422
    assert "Name the one of entailment" in response.text


@pytest.mark.parametrize("route", ["/zero-shot-classification", "/v1/systemone"])
def test_other_classifiers_have_no_routes_for_labels(quantized, of_entailment, route) -> None:
    with (
        qdqbert.load(quantized("classifier").directory, engine="onnxruntime") as model,
        TestClient(build_app({"sentiment": model})) as client,
    ):
        assert route not in client.get("/").text
        body = {"inputs": "a", "parameters": {"candidate_labels": ["b"]}}
        assert post(client, route, body).status_code in (404, 422)
    assert route in of_entailment[1].get("/").text


def test_a_model_of_the_task_answers_at_its_address_too(of_entailment) -> None:
    _, client, folder = of_entailment
    body = {"inputs": TEXTS[:2], "parameters": {"candidate_labels": "music, rain"}}
    expected = answer(client, "/zero-shot-classification", body)
    with (
        qdqbert.load(folder, engine="onnxruntime", task="zero-shot-classification") as model,
        TestClient(build_app({"nli": model})) as own,
    ):
        for path in ("/zero-shot-classification", "/", "/models/nli", "/invocations"):
            assert answer(own, path, body) == expected
