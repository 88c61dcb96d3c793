"""Routes of the server, compared with calls of the models."""

from __future__ import annotations

import base64
import functools
import json
import re

import numpy as np
import pytest
from starlette.testclient import TestClient

import qdqbert
from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from qdqbert.serving.metrics import Metrics
from qdqbert.tasks.small_vectors import quantize_vectors
from serving_requests import TEXTS, answer, close, post


def test_openai_embeds_texts(client, models) -> None:
    expected = models["embedder"].encode(TEXTS)
    found = answer(client, "/v1/embeddings", {"input": TEXTS, "model": "embedder"})
    assert found["object"] == "list"
    assert found["model"] == "embedder"
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    close([each["embedding"] for each in found["data"]], expected.tolist())
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > len(TEXTS)
    body = {"input": TEXTS[0], "model": "embedder", "encoding_format": "base64"}
    (only,) = answer(client, "/v1/embeddings", body)["data"]
    decoded = np.frombuffer(base64.b64decode(only["embedding"]), "<f4")
    np.testing.assert_allclose(decoded, expected[0], atol=1e-5)


def embeddings(client, **fields):
    body = {"input": TEXTS, "model": "embedder", **fields}
    return [each["embedding"] for each in answer(client, "/v1/embeddings", body)["data"]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_embeddings_have_the_kind_of_values_that_is_asked_for(client, models, dtype) -> None:
    model = models["embedder"]
    for dimensions in (None, 16):
        floats = np.array(embeddings(client, dimensions=dimensions, output_dtype="float"))
        # They have length 1 after they are cut.
        ranges = model.embedding_ranges(truncate_dim=dimensions, normalize_embeddings=True)
        expected = quantize_vectors(floats.astype(np.float32), dtype, ranges)
        options = {"dimensions": dimensions, "output_dtype": dtype}
        found = embeddings(client, **options)
        assert found == expected.tolist()
        coded = embeddings(client, **options, encoding_format="base64")
        assert [base64.b64decode(each) for each in coded] == [each.tobytes() for each in expected]
    floats = np.array(answer(client, "/models/embedder/embed", {"inputs": TEXTS}), np.float32)
    expected = quantize_vectors(floats, dtype, model.embedding_ranges(normalize_embeddings=True))
    body = {"inputs": TEXTS, "output_dtype": dtype}
    assert answer(client, "/models/embedder/embed", body) == expected.tolist()


@pytest.mark.parametrize("dtype", ["int8", "binary"])
def test_codes_of_more_dimensions_than_the_model_has_are_refused(client, dtype) -> None:
    body = {"input": TEXTS, "model": "embedder", "dimensions": 64, "output_dtype": dtype}
    response = post(client, "/v1/embeddings", body)
    assert response.status_code == 400
    assert "embeddings of the model have 32" in response.json()["error"]["message"]


def test_an_unknown_kind_of_values_is_refused_with_all_that_there_are(client) -> None:
    body = {"input": TEXTS, "model": "embedder", "output_dtype": "float16"}
    response = post(client, "/v1/embeddings", body)
    assert response.status_code == 422
    assert response.json()["error"]["message"] == (
        "`output_dtype`: input should be 'float', 'float32', 'int8', 'uint8', 'binary' or "
        "'ubinary'."
    )


@pytest.mark.parametrize(
    ("route", "body", "expected"),
    [
        (
            "/embed",
            {"inputs": {"text": "a cat"}},
            "`inputs`: expected a text or several.",
        ),
        (
            "/models/classifier/predict",
            {"inputs": ["a", "b", "c"]},
            "`inputs`: expected a text, a pair of texts, or a list of lists of one text or a pair.",
        ),
        ("/embed", {}, "`inputs`: field required."),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": []}},
            "`inputs.sentences`: list should have at least 1 item, not 0.",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_it_should_be(client, route, body, expected) -> None:
    response = post(client, route, body)
    assert (response.status_code, response.json()["error"]) == (422, expected)


def test_codes_without_ranges_are_refused(tiny_artifact) -> None:
    checkpoint, _ = tiny_artifact()
    with (
        qdqbert.load(checkpoint) as model,
        TestClient(build_app({"plain": model})) as client,
    ):
        response = post(client, "/embed", {"inputs": ["a cat"], "output_dtype": "int8"})
        assert response.status_code == 422
        assert "need the range of the embeddings" in response.json()["error"]
        assert len(answer(client, "/embed", {"inputs": "a", "output_dtype": "ubinary"})[0]) == 4


def test_openai_lists_the_models(client, models) -> None:
    found = client.get("/v1/models").json()
    assert [each["id"] for each in found["data"]] == list(models)


@pytest.mark.parametrize("prefix", ["", "/models/embedder"])
def test_embed_scales_to_length_1_unless_told(client, models, prefix) -> None:
    expected = models["embedder"].encode(TEXTS, normalize_embeddings=True)
    close(answer(client, f"{prefix}/embed", {"inputs": TEXTS}), expected.tolist())
    plain = models["embedder"].encode([TEXTS[0]])
    found = answer(client, f"{prefix}/embed", {"inputs": TEXTS[0], "normalize": False})
    close(found, plain.tolist())


def test_rerank_sorts_texts(client, models) -> None:
    pairs = [(TEXTS[0], each) for each in TEXTS]
    scores = models["reranker"].predict(pairs, activation="sigmoid")
    body = {"query": TEXTS[0], "texts": TEXTS, "return_text": True}
    found = answer(client, "/rerank", body)
    assert [each["index"] for each in found] == np.argsort(-scores, kind="stable").tolist()
    for each in found:
        close(each["score"], scores[each["index"]])
        assert each["text"] == TEXTS[each["index"]]
    raw = models["reranker"].predict(pairs, activation="none")
    for each in answer(client, "/rerank", {**body, "raw_scores": True, "return_text": False}):
        assert each.keys() == {"index", "score"}
        close(each["score"], raw[each["index"]])


def test_rerank_sorts_texts_whose_scores_round_to_one_by_their_logits(tiny_artifact) -> None:
    _, folder = tiny_artifact(
        "AutoModelForSequenceClassification", num_labels=1, initializer_range=5.0
    )
    texts = [f"{text} {word}" for text in TEXTS for word in ("a", "river", "dog", "rain")]
    with (
        qdqbert.load(folder, engine="onnxruntime") as model,
        TestClient(build_app({"reranker": model})) as client,
    ):
        logits = model.predict([(TEXTS[0], each) for each in texts], activation="none")
        found = answer(client, "/rerank", {"query": TEXTS[0], "texts": texts})
    assert found[2]["score"] == 1
    assert [each["index"] for each in found] == np.argsort(-logits, kind="stable").tolist()


def test_predict_takes_texts_and_pairs(client, models) -> None:
    call = models["classifier"]
    prefix = "/models/classifier"
    found = answer(client, f"{prefix}/predict", {"inputs": TEXTS[0]})
    close(found, call(TEXTS[0], top_k=None))
    pair = tuple(TEXTS[:2])
    close(answer(client, f"{prefix}/predict", {"inputs": pair}), call([pair], top_k=None)[0])
    several = [[TEXTS[0]], list(pair)]
    found = answer(client, f"{prefix}/predict", {"inputs": several, "raw_scores": True})
    close(found, call([TEXTS[0], pair], top_k=None, function_to_apply="none"))


def test_each_task_has_a_route_with_the_answers_of_pipelines(client, models) -> None:
    question = {"question": "where is the cat", "context": "the cat sat on the book in the night"}
    mask = "the [MASK] sat on the book"
    choices = {"context": "the cat", "choices": ["sat on the book", "music"]}
    nearby = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    cases = [
        (
            "/models/classifier/text-classification",
            TEXTS[0],
            models["classifier"](TEXTS, top_k=None)[:1],
        ),
        (
            "/token-classification",
            TEXTS[0],
            models["tagger"](TEXTS[0], aggregation_strategy="simple"),
        ),
        ("/question-answering", question, models["reader"](question)),
        ("/fill-mask", mask, models["filler"](mask)),
        ("/multiple-choice", choices, models["chooser"](choices)),
        ("/next-sentence-prediction", nearby, models["pairs"](tuple(TEXTS[:2]))),
    ]
    for path, inputs, expected in cases:
        one = answer(client, path, {"inputs": inputs})
        close(one, expected)
        several = answer(client, path, {"inputs": [inputs, inputs]})
        assert len(several) == 2
        assert several[0] == several[1]


def test_parameters_are_passed_on(client, models) -> None:
    body = {"inputs": TEXTS[0], "parameters": {"aggregation_strategy": "none"}}
    expected = models["tagger"](TEXTS[0], aggregation_strategy="none")
    close(answer(client, "/token-classification", body), expected)
    body = {"inputs": [TEXTS[0]], "parameters": {"top_k": 2, "function_to_apply": "sigmoid"}}
    expected = models["classifier"]([TEXTS[0]], top_k=2, function_to_apply="sigmoid")
    close(answer(client, "/models/classifier/text-classification", body), expected)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/embed", {"inputs": 3}, 422, "inputs"),
        ("/embed", {"inputs": []}, 422, "inputs"),
        ("/embed", {"inputs": "a\ud800"}, 422, "not JSON"),
        ("/embed", {"inputs": "cat " * 400, "truncate": False}, 413, "leave `truncate` out"),
        ("/embed", {"inputs": ["x"] * 2049}, 413, "2048 inputs, got 2049"),
        ("/embed", {"inputs": "x", "dimensions": 9999}, 400, "`dimensions` is 9999"),
        ("/embed", {"inputs": "x", "truncation_direction": "up"}, 422, "truncation_direction"),
        ("/embed", {"inputs": "x", "prompt_name": "none"}, 422, "prompt_name"),
        ("/models/none/embed", {"inputs": "x"}, 404, "no model 'none'. It has: embedder"),
        ("/models/tagger/embed", {"inputs": "x"}, 422, "for the task 'token-classification'"),
        ("/predict", {"inputs": "x"}, 422, "Several models run this route"),
        ("/fill-mask", {"inputs": "no mask"}, 422, "MASK"),
        ("/question-answering", {"inputs": {"question": "x"}}, 422, "context"),
        (
            "/question-answering",
            {"inputs": {"question": "x", "context": " "}},
            422,
            "The `context` of an input is ' '",
        ),
        ("/token-classification", {"inputs": "x", "parameters": {"top": 1}}, 422, "top"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)
def test_wrong_requests_are_refused(client, path, body, status, message) -> None:
    # Tests send half of a surrogate pair as an escape, as a client could.
    response = client.post(
        path, content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert response.status_code == status
    assert message in response.json()["error"]
    assert response.json()["error_type"]


def test_errors_of_openai_have_its_form(client) -> None:
    response = post(client, "/v1/embeddings", {"input": "x", "model": "none"})
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "no model 'none'" in response.json()["error"]["message"]
    broken = client.post(
        "/v1/embeddings", content=b"{", headers={"content-type": "application/json"}
    )
    assert broken.status_code == 422
    assert broken.json()["error"]["message"].startswith("The body is not JSON: ")


@pytest.mark.parametrize("options", [{}, {"truncate": True}, {"truncate": None}])
def test_texts_that_are_too_long_are_cut_and_a_header_says_so(models, options) -> None:
    long = "cat " * 400
    expected = models["embedder"].encode([long], normalize_embeddings=True)
    with TestClient(build_app({"embedder": models["embedder"]})) as client:
        response = post(client, "/embed", {"inputs": [long, "cat"], **options})
        close(response.json()[:1], expected.tolist())
        assert response.headers["X-Truncated-Inputs"] == "1"
        assert "X-Truncated-Inputs" not in post(client, "/embed", {"inputs": "cat"}).headers
        response = post(client, "/v1/embeddings", {"input": long, "model": "embedder", **options})
        assert response.headers["X-Truncated-Inputs"] == "1"
        metrics = client.get("/metrics").text
    assert 'qdqbert_truncated_inputs_total{model="embedder"} 2.0' in metrics


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_texts_that_must_not_be_cut_are_refused(client, path) -> None:
    body = {"inputs": "cat " * 400, "input": "cat " * 400, "model": "embedder", "truncate": False}
    response = post(client, path, body)
    assert response.status_code == 413
    # The advice is a field that the route takes.
    assert "`truncate`" in response.text


@pytest.mark.parametrize(
    ("path", "inputs"),
    [
        ("/token-classification", "cat " * 25_001),
        ("/question-answering", {"question": "who?", "context": "cat " * 25_001}),
    ],
)
def test_texts_that_would_be_read_for_too_long_are_refused(client, path, inputs) -> None:
    response = post(client, path, {"inputs": inputs})
    assert response.status_code == 413
    assert "100000 characters" in response.text


def test_the_start_of_long_texts_can_be_cut_off(client, models) -> None:
    long = "the cat sat on the book " * 60 + "music in the night"
    for direction in ("Left", "left"):
        cut = {"truncation_direction": direction}
        (found,) = answer(client, "/embed", {"inputs": long, **cut})
        limit = models["embedder"].max_length
        tokenizer = models["embedder"]._loaded.tokenizer
        (whole,) = tokenizer.cutting(None).encode_batch([long], offsets=True)
        kept = long[whole.offsets[-(limit - 1)][0] :]
        close(found, models["embedder"].encode(kept, normalize_embeddings=True).tolist())
        right = answer(client, "/embed", {"inputs": long, "truncation_direction": "Right"})
        close(right, answer(client, "/embed", {"inputs": long}))
        assert not np.allclose(found, right[0])
        pairs = {"query": "a dog", "texts": [long, "a cat"], "raw_scores": True}
        scores = {each["index"]: each["score"] for each in answer(client, "/rerank", pairs)}
        left = {
            each["index"]: each["score"] for each in answer(client, "/rerank", {**pairs, **cut})
        }
        assert scores[1] == pytest.approx(left[1], abs=1e-5)
        assert scores[0] != left[0]
        answer(client, "/models/classifier/predict", {"inputs": long, **cut})


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_fewer_dimensions_keep_the_length_of_vectors(client, models, path, quantized) -> None:
    def embed(**options):
        body = {"input": TEXTS, "inputs": TEXTS, "model": "embedder", **options}
        found = answer(client, path, body)
        return np.array([x["embedding"] for x in found["data"]] if "data" in found else found)

    whole = embed()
    width = whole.shape[1]
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)
    for count in (1, 7, width):
        cut = whole[:, :count]
        expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose(embed(dimensions=count), expected, atol=1e-5)
    for count in (width + 1, 9999, 10**30):
        body = {"input": "x", "inputs": "x", "model": "embedder", "dimensions": count}
        response = post(client, path, body)
        assert response.status_code == 400
        assert f"have {width}" in response.text


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding_format": None, "dimensions": None, "user": None},
        {"input_type": "query", "truncate_prompt_tokens": 8192, "user": "me"},
        {"model": "text-embedding-3-small"},
        {"model": None},
    ],
)
def test_openai_takes_the_fields_that_clients_send(models, fields) -> None:
    with TestClient(build_app({"embedder": models["embedder"]})) as client:
        found = answer(client, "/v1/embeddings", {"input": "a dog", "model": "embedder", **fields})
    assert found["model"] == "embedder"
    close(found["data"][0]["embedding"], models["embedder"].encode("a dog").tolist())


def test_openai_takes_as_many_inputs_as_its_clients_send(client, models) -> None:
    texts = [TEXTS[index % 3] for index in range(2048)]
    data = answer(client, "/v1/embeddings", {"input": texts, "model": "embedder"})["data"]
    expected = models["embedder"].encode(TEXTS)
    np.testing.assert_allclose(
        [each["embedding"] for each in data],
        np.resize(expected, (2048, expected.shape[1])),
        atol=1e-5,
    )


def test_openai_takes_token_ids_of_the_model(client, models) -> None:
    embedder = models["embedder"]
    tokenizer = embedder._loaded.tokenizer.cutting(None)
    ids = [tokenizer.encode(each).ids for each in TEXTS]

    def embed(given):
        body = {"input": given, "model": "embedder"}
        return [each["embedding"] for each in answer(client, "/v1/embeddings", body)["data"]]

    close(embed(ids), embedder.encode(TEXTS).tolist())
    close(embed(ids[0]), embedder.encode(TEXTS[:1]).tolist())
    long = "cat " * 400
    close(embed(tokenizer.encode(long).ids), embedder.encode([long]).tolist())


@pytest.mark.parametrize(
    "ids", [[[57668, 53901]], [5, 6, 7], [[2, 10**9, 3]], [[2, -1, 3]], [[]], [[10**30]]]
)
def test_openai_refuses_token_ids_of_other_tokenizers(client, ids) -> None:
    response = post(client, "/v1/embeddings", {"input": ids, "model": "embedder"})
    assert response.status_code == 422
    assert "check_embedding_ctx_length=False" in response.json()["error"]["message"]


def test_openai_names_what_is_wrong_with_an_empty_input(client) -> None:
    response = post(client, "/v1/embeddings", {"input": [], "model": "embedder"})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == "`input` is empty. Send at least one text."


def test_openai_describes_a_model(client, models) -> None:
    assert client.get("/v1/models/embedder").json() == client.get("/v1/models").json()["data"][0]
    missing = client.get("/v1/models/none")
    assert missing.status_code == 404
    assert "no model 'none'" in missing.json()["error"]["message"]


def test_fields_that_text_embeddings_inference_does_not_know_are_ignored(client) -> None:
    assert answer(client, "/embed", {"inputs": "x", "whatever": 1, "normalize": None})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "x", "model": "m" * 100_000}),
        ("/embed", {"inputs": "x", "prompt_name": "m" * 100_000}),
        (f"/models/{'m' * 50_000}/embed", {"inputs": "x"}),
        (f"/{'m' * 50_000}", {}),
        ("/token-classification", {"inputs": "x", "parameters": {"m" * 100_000: 1}}),
        ("/fill-mask", {"inputs": "[MASK]", "parameters": {"targets": [" " * 100_000]}}),
    ],
    ids=["openai", "prompt", "model", "route", "field", "target"],
)
def test_long_names_are_not_echoed(client, path, body) -> None:
    response = post(client, path, body)
    assert 400 <= response.status_code < 500
    assert len(response.content) < 2000


def test_status_routes_describe_the_server(client, models) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    info = client.get("/info").json()["models"]
    assert {each["name"]: each["task"] for each in info} == {
        name: each.task for name, each in models.items()
    }
    facts = {each["name"]: {name: each.get(name) for name in FACTS} for each in info}
    embedder = {"pooling": "mean", "normalize": True, "prompt": ""}
    reranker = {"activation": "sigmoid", "prompt": "", "template": False}
    assert facts["embedder"] == dict.fromkeys(FACTS) | embedder
    assert facts["reranker"] == dict.fromkeys(FACTS) | reranker
    assert facts["classifier"] == dict.fromkeys(FACTS)
    assert client.head("/health").status_code == 200


def test_the_description_has_every_route_with_its_body(client) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    paths = described["paths"]
    assert {"/v1/embeddings", "/embed", "/models/{model}/fill-mask", "/metrics"} <= paths.keys()
    schemas = described["components"]["schemas"]
    # Every reference, also inside schemas, leads to a schema.
    references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described))
    assert set(references) == schemas.keys()
    body = paths["/embed"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/EmbedBody"}
    assert schemas["EmbedBody"]["required"] == ["inputs"]
    # Names of models in paths are those that run the route.
    named = paths["/models/{model}/fill-mask"]["post"]["parameters"][0]["schema"]
    assert named == {"type": "string", "enum": ["filler"]}
    for path, operations in paths.items():
        (operation,) = operations.values()
        for response in operation["responses"].values():
            ((_, content),) = response["content"].items()
            assert "schema" in content
        names = [each["name"] for each in operation.get("parameters", [])]
        assert names == re.findall(r"\{(\w+)\}", path)


def test_routes_refuse_other_methods(client) -> None:
    refused = client.get("/embed")
    assert refused.status_code == 405
    assert refused.headers["Allow"] == "POST"
    assert "got GET" in refused.json()["error"]
    assert post(client, "/models/embedder/health", {}).status_code == 404


def test_failures_are_answered_and_logged(client, models, monkeypatch, caplog) -> None:
    def fail(**options):
        raise RuntimeError("out of order")

    monkeypatch.setattr(models["embedder"], "job", fail)
    response = post(client, "/embed", {"inputs": "x"})
    assert response.status_code == 500
    assert response.json() == {
        "error": "The request failed in the server.",
        "error_type": "Backend",
    }
    assert "out of order" in caplog.text


def test_a_prefix_of_the_path_is_left_out(models) -> None:
    app = build_app({"embedder": models["embedder"]})
    with TestClient(app, root_path="/prefix") as client:
        assert client.get("/prefix/health").status_code == 200


def test_requests_are_counted_by_route(models) -> None:
    with TestClient(build_app({"embedder": models["embedder"]})) as client:
        answer(client, "/embed", {"inputs": TEXTS})
        answer(client, "/models/embedder/embed", {"inputs": TEXTS[0]})
        post(client, "/made/up", {})
        lines = client.get("/metrics").text.splitlines()
    assert 'qdqbert_requests_total{route="/embed",status="200"} 2.0' in lines
    assert 'qdqbert_requests_total{route="other",status="404"} 1.0' in lines
    assert 'qdqbert_inputs_total{model="embedder"} 4.0' in lines
    assert 'qdqbert_queued_inputs{model="embedder"} 0.0' in lines


def test_a_form_is_told_what_to_send(client) -> None:
    for sent in ({"data": {"inputs": "x"}}, {"files": {"inputs": b"x"}}):
        refused = client.post("/models/embedder/embed", **sent)
        assert refused.status_code == 422
        assert "Send JSON with `Content-Type: application/json`" in refused.json()["error"]


def test_a_server_none_of_whose_processes_is_ready_is_not_healthy(models) -> None:
    running = iter((0, 2))
    app = build_app(
        {"embedder": models["embedder"]}, running_workers=functools.partial(next, running)
    )
    with TestClient(app) as client:
        starting = client.get("/health")
        assert starting.status_code == 503
        assert starting.json() == {"status": "starting", "workers": 0}
        ready = client.get("/health")
        assert ready.status_code == 200
        assert ready.json() == {"status": "ok", "workers": 2}


FACTS = ("pooling", "normalize", "prompt", "activation", "template")
WRONG = ("Bearer wrong", "secret", "Basic secret", "Bearer", "Bearersecret", "Bearer Secret")


def test_a_key_is_needed_if_there_is_one(models) -> None:
    app = build_app({"embedder": models["embedder"]}, api_key="secret")
    with TestClient(app) as client:
        for path in ("/health", "/health/", "//health", "/ping/"):
            assert client.get(f"http://testserver{path}").status_code == 200
        for headers in ({}, *({"Authorization": each} for each in WRONG)):
            refused = post(client, "/embed", {"inputs": "x"}, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert client.get("/metrics").status_code == 401
        # RFC 9110: the case of the scheme and blanks around the credentials do not matter.
        for given in ("Bearer secret", "bearer secret", "BEARER   secret", " Bearer secret "):
            headers = {"Authorization": given}
            assert post(client, "/embed", {"inputs": "x"}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("coding", "status"), [("gzip", 415), ("br", 415), ("identity", 200), ("", 200)]
)
def test_a_compressed_body_is_refused_by_its_header(client, coding, status) -> None:
    response = post(client, "/embed", {"inputs": "x"}, headers={"Content-Encoding": coding})
    assert response.status_code == status
    if status == 415:
        assert f"`Content-Encoding: {coding}`" in response.json()["error"]
        assert response.headers["Accept-Encoding"] == "identity"


def test_large_bodies_are_refused_with_and_without_a_declared_length(models) -> None:
    app = build_app({"embedder": models["embedder"]}, limits=Limits(max_body=1000))
    body = json.dumps({"inputs": "x" * 2000}).encode()
    with TestClient(app) as client:
        refused = client.post("/embed", content=body)
        assert refused.status_code == 413
        # The body was read, so that the connection can be used.
        assert "Connection" not in refused.headers
        chunked = client.post("/embed", content=iter([body[:900], body[900:]]))
        assert chunked.status_code == 413
        assert "larger than 1000 bytes" in chunked.json()["error"]
        small = client.post(
            "/embed",
            content=iter([b'{"inputs":', b' "x"}']),
            headers={"content-type": "application/json"},
        )
        assert small.status_code == 200


def test_labels_of_a_replica_are_in_all_of_its_metrics() -> None:
    metrics = Metrics(labels={"replica": "a"})
    metrics.count("/embed", 200, 0.5)
    lines = [each for each in metrics.text().decode().splitlines() if not each.startswith("#")]
    assert 'qdqbert_requests_total{replica="a",route="/embed",status="200"} 1.0' in lines
    assert all('replica="a"' in each for each in lines)
    assert metrics.total("qdqbert_requests") == 1
