"""Ray Serve on a local Ray, with real requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import inspect
import os
import re
import signal
import time

import httpx
import numpy as np
import psutil
import pytest

import qdqbert
from ports import free_port
from qdqbert.common.errors import UserInputError
from qdqbert.integrations import ray_serve
from qdqbert.serving.app import build_app
from qdqbert.serving.limits import Limits
from qdqbert.serving.options import ServerOptions

NO_CPUS = {"num_cpus": 0}
TEXTS = [f"the cat sat on {number} books" for number in range(60)]


def test_parameters_are_the_options_of_a_server() -> None:
    parameters = inspect.signature(ray_serve.application).parameters
    fields = {each.name: each.default for each in dataclasses.fields(ServerOptions)}
    own = {"deployment", "gateways"}
    assert parameters.keys() - own == fields.keys()
    # A replica has one CPU, and a server all of them.
    for name in parameters.keys() - own - {"models", "threads"}:
        assert parameters[name].default == fields[name], name


def test_wrong_options_are_refused_before_ray_starts() -> None:
    with pytest.raises(UserInputError, match="`max_texts` must be at least 1"):
        ray_serve.application("./my-embedder-int8", max_texts=0)
    with pytest.raises(UserInputError, match="`models` is missing"):
        ray_serve.application()
    with pytest.raises(UserInputError, match="`gateways=-1` is negative"):
        ray_serve.application("./my-embedder-int8", gateways=-1)


def test_a_body_that_a_gateway_waited_for_too_long_is_refused_by_the_replica() -> None:
    limits = Limits(body_seconds=0.01)
    app = build_app({}, limits=limits)
    scope = {"type": "http", "method": "POST", "path": "/embed", "headers": []}

    parts = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive():
        for part in parts:
            return part
        await asyncio.Event().wait()

    async def ask():
        read = await ray_serve._read(receive, limits)
        return await ray_serve._response(app, scope, *read)

    start, body = asyncio.run(ask())
    assert start["status"] == 408
    assert b"took longer than 0.01 seconds" in body["body"]


@pytest.fixture(scope="module")
def cluster():
    """A local Ray with two CPUs, and the URL of its server."""
    pytest.importorskip("ray.serve", reason="needs pip install 'qdqbert[ray-serve]'")
    import ray
    from ray import serve

    port = free_port()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_replicas_answer_as_the_model_does_and_come_back_after_a_death(cluster, quantized) -> None:
    from ray import serve

    folder = quantized("sentence").directory
    made = ray_serve.application(
        folder, engine="onnxruntime", deployment={"num_replicas": 2, "health_check_period_s": 1}
    )
    serve.run(made)
    with qdqbert.load(folder, engine="onnxruntime") as model:
        expected = model.encode(TEXTS)

    def embed(client: httpx.Client, text: str) -> np.ndarray:
        body = {"inputs": text, "normalize": False}
        answer = client.post(f"{cluster}/embed", json=body, timeout=60)
        answer.raise_for_status()
        return np.asarray(answer.json()[0])

    with httpx.Client() as client:
        for text, wanted in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(embed(client, text), wanted, atol=1e-5)
        assert client.get(f"{cluster}/health").json() == {"status": "ok"}
        assert len(replicas_of(client, cluster)) == 2
        refused = client.post(f"{cluster}/embed", json={"inputs": []})
        assert refused.status_code == 422

        (process, *_) = replicas("qdqbert")
        os.kill(process, signal.SIGKILL)
        end = time.monotonic() + 120
        while process in (found := replicas("qdqbert")) or len(found) < 2:
            assert time.monotonic() < end, found
            time.sleep(0.5)
        for text, wanted in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(embed(client, text), wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("gateways", "status"), [(0, 500), (2, 200)])
def test_gateways_try_requests_again_whose_replica_dies(cluster, quantized, gateways, status):
    from ray import serve

    folder = quantized("sentence").directory
    made = ray_serve.application(
        folder,
        engine="onnxruntime",
        max_body=100_000_000,
        max_texts=100_000,
        max_queued=100_000,
        gateways=gateways,
        # Those of another test may have all CPUs.
        deployment={"name": "dying", "health_check_period_s": 1, "ray_actor_options": NO_CPUS},
    )
    serve.run(made, name="dying", route_prefix="/dying")
    # Takes seconds, so that the replica is in the middle of it.
    texts = [f"{text} {number}" for number in range(1000) for text in TEXTS]
    body = {"inputs": texts, "normalize": False}
    (process,) = map(psutil.Process, replicas("dying"))
    before = busy(process)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{cluster}/dying/embed", json=body, timeout=300)
        while busy(process) < before + 0.5:
            assert not asked.done()
            time.sleep(0.01)
        process.kill()
        answer = asked.result()
    serve.delete("dying")
    assert answer.status_code == status
    if status == 200:
        with qdqbert.load(folder, engine="onnxruntime") as model:
            np.testing.assert_allclose(answer.json(), model.encode(texts), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_requests_through_gateways_are_answered_as_without(cluster, quantized) -> None:
    from ray import serve

    for gateways in range(2):
        made = ray_serve.application(
            quantized("sentence").directory,
            engine="onnxruntime",
            api_key="secret",
            allow_origin=["https://example.org"],
            max_body=2000,
            gateways=gateways,
            deployment={"name": f"with{gateways}", "ray_actor_options": NO_CPUS},
        )
        serve.run(made, name=f"with{gateways}", route_prefix=f"/with{gateways}")

    def answers(gateways: int) -> list[tuple[int, bytes, str]]:
        headers = {"Authorization": "Bearer secret", "Origin": "https://example.org"}
        url = f"{cluster}/with{gateways}"
        post = functools.partial(httpx.post, headers=headers, timeout=60)
        found = [
            httpx.get(f"{url}/health"),
            httpx.get(f"{url}/info", headers=headers),
            httpx.get(f"{url}/missing", headers=headers),
            httpx.post(f"{url}/embed", json={"inputs": "the cat"}),
            post(f"{url}/embed", json={"inputs": "the cat"}),
            post(f"{url}/v1/embeddings", json={"input": ["the cat", "a dog"], "model": "x"}),
            post(f"{url}/embed", json={"inputs": "the cat " * 1000}),
            post(f"{url}/embed", content=iter([b'{"inputs":', b'"the cat"}'])),
            post(f"{url}/embed", content=b"{"),
        ]
        names = ("content-type", "access-control-allow-origin", "www-authenticate")
        return [
            (each.status_code, each.content, [each.headers.get(name) for name in names])
            for each in found
        ]

    without, through = map(answers, range(2))
    assert [status for status, _, _ in without] == [200, 200, 404, 401, 200, 200, 413, 200, 422]
    assert through == without
    for gateways in range(2):
        serve.delete(f"with{gateways}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_reason_of_a_failure_is_the_last_line_of_the_message(cluster, tmp_path) -> None:
    from ray import serve

    name = tmp_path / "missing"
    # The replicas of another test may have all CPUs.
    made = ray_serve.application(name, deployment={"ray_actor_options": {"num_cpus": 0}})
    with pytest.raises(RuntimeError, match="failed"):
        serve.run(made, name="other", route_prefix="/other")
    (deployment,) = serve.status().applications["other"].deployments.values()
    serve.delete("other")
    reason = deployment.message.strip().splitlines()[-1]
    assert reason.endswith(f"CheckpointError: Folder '{name}' does not exist. Check the path.")


def replicas_of(client: httpx.Client, url: str) -> set[str]:
    """Return the labels of the replicas that have answered for their metrics."""
    texts = [client.get(f"{url}/metrics").text for _ in range(40)]
    return {each for text in texts for each in re.findall(r'requests_total\{replica="(\w+)"', text)}


def replicas(deployment: str) -> list[int]:
    """Return the processes of the replicas of a deployment that are alive."""
    title = re.compile(rf"ray::ServeReplica:\w+:{deployment}(?!-)")
    processes = psutil.process_iter(["cmdline"])
    return [each.pid for each in processes if title.match((each.info["cmdline"] or [""])[0])]


def busy(process: psutil.Process) -> float:
    """Return the CPU seconds of a process."""
    used = process.cpu_times()
    return used.user + used.system
