"""A server in a process of its own, with the clients that its users have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

import qdqbert
from server_process import KEY, SECONDS, Server

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TEXTS = ["the cat sat on the book", "music in the night", "a dog"]


@pytest.fixture(scope="module")
def folders(quantized, tiny_artifact):
    return {
        "embedder": quantized("sentence").directory,
        "tagger": tiny_artifact("AutoModelForTokenClassification")[1],
        "reranker": tiny_artifact("AutoModelForSequenceClassification", num_labels=1)[1],
    }


@pytest.fixture(scope="module")
def server(folders):
    made = Server(*map(str, folders.values()), "--engine", "onnxruntime")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def embeddings(folders):
    with qdqbert.load(folders["embedder"], engine="onnxruntime") as model:
        return model.encode(TEXTS)


def test_the_openai_package_embeds(server, folders, embeddings) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        # It asks for base64 by itself.
        found = client.embeddings.create(input=TEXTS, model=folders["embedder"].name)
        vectors = np.array([each.embedding for each in found.data])
        np.testing.assert_allclose(vectors, embeddings, atol=1e-5)
        small = client.embeddings.create(
            input=TEXTS,
            model=folders["embedder"].name,
            encoding_format="float",
            extra_body={"output_dtype": "ubinary"},
        )
        bits = np.unpackbits(np.array([each.embedding for each in small.data], np.uint8), axis=1)
        np.testing.assert_array_equal(bits, vectors > 0)
        assert [each.id for each in client.models.list()] == [
            each.name for each in folders.values()
        ]
        with pytest.raises(openai.NotFoundError, match="no model 'none'"):
            client.embeddings.create(input="x", model="none")
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_the_hub_client_embeds_and_tags(server, folders, embeddings, monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    # The server is on this machine.
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    client = hub.InferenceClient(token=KEY)
    found = client.feature_extraction(TEXTS[0], model=f"{server.url}/embed", normalize=False)
    np.testing.assert_allclose(np.ravel(found), embeddings[0], atol=1e-5)
    tags = client.token_classification(TEXTS[0], model=f"{server.url}/token-classification")
    with qdqbert.load(folders["tagger"], engine="onnxruntime") as model:
        expected = model(TEXTS[0], aggregation_strategy="simple")
    assert [(each.word, each.start, each.end) for each in tags] == [
        (each["word"], each["start"], each["end"]) for each in expected
    ]


@pytest.mark.slow
def test_the_cohere_package_ranks(server, folders) -> None:
    cohere = pytest.importorskip("cohere")
    name = folders["reranker"].name
    with qdqbert.load(folders["reranker"], engine="onnxruntime") as model:
        expected = model.rank(TEXTS[0], TEXTS, top_k=2, activation="sigmoid")
    asked = {"query": TEXTS[0], "documents": TEXTS, "top_n": 2}
    with httpx.Client(timeout=SECONDS) as http:
        # The package leaves its own connections open.
        settings = {"api_key": KEY, "base_url": server.url, "httpx_client": http}
        first, second = cohere.Client(**settings), cohere.ClientV2(**settings)
        with_texts = first.rerank(model=name, **asked, return_documents=True).results
        for found in with_texts, second.rerank(model=name, **asked).results:
            assert [each.index for each in found] == [each["corpus_id"] for each in expected]
            scores = [each.relevance_score for each in found]
            np.testing.assert_allclose(scores, [each["score"] for each in expected], atol=1e-5)
        assert [each.document.text for each in with_texts] == [
            TEXTS[each.index] for each in with_texts
        ]
        with pytest.raises(cohere.NotFoundError, match="no model 'none'"):
            second.rerank(model="none", **asked)


LANGUAGES = {
    "java": "java {0}/Similarity.java",
    "go": "go run {0}/similarity.go",
    # mono's compiler and runtime: Debian has no .NET.
    "mcs": "mcs -r:System.Net.Http.dll -r:System.Web.dll -out:{1}/similarity.exe "
    "{0}/Similarity.cs && mono {1}/similarity.exe",
}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", LANGUAGES)
def test_the_programs_in_other_languages_compare_texts(
    server, folders, compiler, tmp_path, monkeypatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}: apt install default-jdk-headless golang mono-devel")
    monkeypatch.setenv("QDQBERT_API_KEY", KEY)
    monkeypatch.setenv("LANG", "C.UTF-8")
    # Letters that JSON escapes, and others that are more than a byte.
    texts = [*TEXTS, 'the "cat" \\ sat\ton a b\u00f6\u00f6k \U0001f600']
    command = LANGUAGES[compiler].format(EXAMPLES / "clients", tmp_path)
    url = f"{server.url}/models/{folders['embedder'].name}"
    done = subprocess.run(
        f"{command} {shlex.join([url, texts[-1], *texts])}",
        shell=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    with qdqbert.load(folders["embedder"], engine="onnxruntime") as model:
        vectors = model.encode(texts, normalize_embeddings=True)
    expected = [
        f"{vectors[-1] @ each:.4f}  {text}" for each, text in zip(vectors, texts, strict=True)
    ]
    assert done.stdout.decode().split("\n")[:-1] == expected


@pytest.mark.slow
def test_requests_made_of_the_description_get_the_responses_that_it_describes(
    server, tmp_path
) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        pytest.skip("schemathesis is missing")
    checks = ("not_a_server_error", "status_code_conformance", "content_type_conformance")
    found = subprocess.run(
        [
            *(program, "run", f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {KEY}"),
            *("--checks", ",".join((*checks, "response_schema_conformance"))),
            *("--max-examples", "50", "--seed", "0"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        # It keeps what it found in the folder that it runs in.
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
def test_requests_of_many_clients_get_their_own_answers(server, embeddings) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}

    async def main() -> None:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(headers=headers, limits=limits, timeout=SECONDS) as client:

            async def ask(index: int) -> None:
                count = 1 + index % len(TEXTS)
                body = {"inputs": TEXTS[:count], "normalize": False}
                response = await client.post(f"{server.url}/embed", json=body)
                assert response.status_code == 200, response.text
                found = np.array(response.json())
                np.testing.assert_allclose(found, embeddings[:count], atol=1e-5)

            await asyncio.gather(*(ask(index) for index in range(400)))

    asyncio.run(main())


def test_clients_that_break_off_and_malformed_requests_harm_nobody(server) -> None:
    body = json.dumps({"inputs": TEXTS * 20}).encode()
    head = (
        "POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    for sent in (head + body, head + body[:9], head[:30], b"\x00\xff\r\n\r\n", b""):
        with socket.create_connection(server.address) as connection:
            connection.sendall(sent)
    headers = {"Authorization": f"Bearer {KEY}"}
    response = httpx.post(
        f"{server.url}/embed", json={"inputs": "x"}, headers=headers, timeout=SECONDS
    )
    assert response.status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.usual("15")
def test_a_signal_ends_the_server_after_what_it_accepted(folders, number) -> None:
    server = Server(str(folders["embedder"]))
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = json.dumps({"inputs": TEXTS * 100})
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(4)]
        for each in connections:
            each.request("POST", "/embed", body, headers)
        server.process.send_signal(number)
        answers = [each.getresponse() for each in connections]
        assert [(each.status, len(json.loads(each.read()))) for each in answers] == [(200, 300)] * 4
    output, messages = server.process.communicate(timeout=SECONDS)
    assert server.process.returncode == 0
    report = json.loads(output)
    assert report["inputs"] == 4 * 300
    assert "Traceback" not in messages
