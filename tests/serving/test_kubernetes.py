"""The manifest for Kubernetes, compared with the server and the image that it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

import qdqbert.verbs.serve.run
from qdqbert.cli import main
from qdqbert.evidence.reporting.serve import ServeReport
from qdqbert.serving.app import build_app
from qdqbert.verbs.serve.options import ServeOptions
from qdqbert.verbs.serve.workers import END_SECONDS
from server_process import KEY

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    text = (ROOT / "examples" / "kubernetes.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def pod(objects) -> dict[str, Any]:
    return objects["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod) -> dict[str, Any]:
    (only,) = pod["containers"]
    return only


@pytest.fixture(scope="module")
def image() -> dict[str, str]:
    """Instructions of the Dockerfile; the last one of each name."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return dict(line.split(maxsplit=1) for line in text.splitlines() if line[:1].isupper())


@pytest.fixture
def served(container, image, monkeypatch) -> ServeOptions:
    """The options of the command that the container runs, with the key of its environment."""
    found = []
    report = ServeReport(requests=0, inputs=0, tokens=0, seconds=0.0)
    monkeypatch.setattr(
        qdqbert.verbs.serve.run, "run", lambda options, progress: found.append(options) or report
    )
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value", KEY))
    program, *words = json.loads(image["ENTRYPOINT"]) + container["args"]
    assert program == "qdqbert"
    with pytest.raises(SystemExit, match="0"):
        main(words)
    return found[0]


@pytest.fixture(scope="module")
def client(models):
    embedder = {"embedder": models["embedder"]}
    with TestClient(build_app(embedder, api_key=KEY)) as made:
        yield made


def test_the_command_accepts_requests_of_other_machines_with_the_key(
    served, container, image
) -> None:
    assert served.host == "0.0.0.0"
    assert served.key == KEY
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": served.port}
    assert image["EXPOSE"] == str(served.port)


def test_probes_are_answered_without_the_key(container, client) -> None:
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[name]["httpGet"]
        assert asked["port"] == "http"
        assert client.get(asked["path"]).status_code == 200


def test_the_server_ends_before_it_is_killed(pod, container, served) -> None:
    program, waits = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    needed = int(waits) + served.shutdown_seconds + END_SECONDS
    assert pod["terminationGracePeriodSeconds"] > needed


def test_what_the_server_writes_is_in_volumes_and_models_are_read_only(
    pod, container, served, image
) -> None:
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for each in mounts.values()} == volumes.keys()
    assert container["securityContext"]["readOnlyRootFilesystem"]
    written = {path for path, each in mounts.items() if not each.get("readOnly")}
    # The cache of the image, and the usual place for temporary files.
    assert written == {image["VOLUME"], "/tmp"}
    assert all("emptyDir" in volumes[mounts[path]["name"]] for path in written)
    assert mounts[str(Path(served.models[0]).parent)]["readOnly"]


def test_names_in_the_manifest_lead_to_each_other(objects, container) -> None:
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    (port,) = objects["Service"]["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}
    scaled = objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled["name"] == objects["Deployment"]["metadata"]["name"]
    assert "replicas" not in objects["Deployment"]["spec"]


def test_metrics_of_the_autoscaler_and_the_page_are_exported(objects, client) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    assert client.post("/embed", json={"inputs": ["a"]}, headers=key).status_code == 200
    exported = set(re.findall(r"^# TYPE (\w+)", client.get("/metrics", headers=key).text, re.M))
    scaled = {
        each["pods"]["metric"]["name"]
        for each in objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
        if "pods" in each
    }
    named = set(re.findall(r"`(qdqbert_\w+)`", PAGE))
    assert scaled
    assert scaled <= named <= exported
