"""Ray Serve on a local Ray, with real requests."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import signal
import time

import httpx
import numpy as np
import pytest

import qdqbert
from ports import free_port
from qdqbert.common.errors import UserInputError
from qdqbert.integrations import ray_serve
from qdqbert.serving.options import ServerOptions

TEXTS = [f"the cat sat on {number} books" for number in range(60)]


def test_parameters_are_the_options_of_a_server() -> None:
    parameters = inspect.signature(ray_serve.application).parameters
    fields = {each.name: each.default for each in dataclasses.fields(ServerOptions)}
    assert parameters.keys() - {"deployment"} == fields.keys()
    # A replica has one CPU, and a server all of them.
    for name in parameters.keys() - {"deployment", "models", "threads"}:
        assert parameters[name].default == fields[name], name


def test_wrong_options_are_refused_before_ray_starts() -> None:
    with pytest.raises(UserInputError, match="`max_texts` must be at least 1"):
        ray_serve.application("./my-embedder-int8", max_texts=0)
    with pytest.raises(UserInputError, match="`models` is missing"):
        ray_serve.application()


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

        (process, *_) = replicas()
        os.kill(process, signal.SIGKILL)
        end = time.monotonic() + 120
        while process in (found := replicas()) or len(found) < 2:
            assert time.monotonic() < end, found
            time.sleep(0.5)
        for text, wanted in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(embed(client, text), wanted, atol=1e-5)


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


def replicas() -> list[int]:
    """Return the processes of the replicas that are alive."""
    psutil = pytest.importorskip("psutil")
    return [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if (each.info["cmdline"] or [""])[0].startswith("ray::ServeReplica")
    ]
