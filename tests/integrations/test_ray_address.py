"""What answers at the address of a Ray cluster, with servers that are no clusters."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ports import silent_port
from python_process import run_python
from qdqbert.common.errors import UserInputError
from qdqbert.integrations import ray_address
from qdqbert.integrations.ray_address import find_cluster

# What servers of gRPC and of HTTP/2 send first: settings.
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
HEADERS = b"\x88@\x0ccontent-type\x10application/grpc"


def frame(kind: int, flags: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags, 0, 0, 0, 1]) + content


CLUSTER = SETTINGS + frame(1, 4, HEADERS) + frame(0, 0, b"\0\0\0\0\x04id00")
UNKNOWN_CALL = SETTINGS + frame(1, 5, HEADERS + b"@\x0bgrpc-status\x0212")
UNAUTHENTICATED = SETTINGS + frame(1, 5, HEADERS + b"@\x0bgrpc-status\x0216")
NOT_FOUND = SETTINGS + frame(1, 4, b"\x8d") + frame(0, 1, b"\0\0\0\0\x04id00")


@pytest.fixture
def serve() -> Iterator[Callable[[bytes | None], int]]:
    """Return a function that starts a server, which sends bytes to a client, and its port."""
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)

        def run() -> None:
            stream, _ = listener.accept()
            opened.append(stream)
            # A client closes the connection as soon as it knows enough.
            with contextlib.suppress(OSError):
                if answer is not None:
                    stream.recv(1 << 16)
                    stream.sendall(answer)
                    stream.shutdown(socket.SHUT_WR)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(10)
    for each in opened:
        each.close()


class FakeRay:
    """Has one node, at an address of this machine, and the versions of this process."""

    __version__ = "2.60.0"
    exceptions = types.SimpleNamespace(RayError=OSError)

    def __init__(self, *, here: str | None = None, node: str = "127.0.0.1", ray: str = "2.60.0"):
        self.here = here
        services = types.SimpleNamespace(
            canonicalize_bootstrap_address=self._found, find_gcs_addresses=set
        )
        utils = types.SimpleNamespace(check_version_info=self._check)
        self._private = types.SimpleNamespace(services=services, utils=utils)
        client = types.SimpleNamespace(
            internal_kv_get=lambda key, namespace, timeout: json.dumps(
                {"ray_version": ray, "python_version": "3.12.1"}
            ),
            get_all_node_info=lambda timeout: {
                "dead": types.SimpleNamespace(state=1, node_manager_address="127.0.0.1"),
                "node": types.SimpleNamespace(state=0, node_manager_address=node),
            },
        )
        self._raylet = types.SimpleNamespace(GcsClient=lambda address: client)

    def _found(self, address: str) -> str | None:
        if address != "auto":
            return None if address == "local" else address
        if self.here is None:
            raise ConnectionError("Could not find any running Ray instance.")
        return self.here

    def _check(self, versions: dict[str, str], process: str) -> None:
        if versions["ray_version"] != self.__version__:
            raise RuntimeError("Version mismatch")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)


def refused(ray: Any, address: str) -> str:
    with pytest.raises(UserInputError) as caught:
        find_cluster(ray, address)
    assert caught.value.argument == "ray"
    shown, _, reason = str(caught.value).partition(": ")
    assert shown.startswith(f"`ray={address!r}`")
    return reason


@pytest.mark.parametrize("answer", [CLUSTER, UNAUTHENTICATED], ids=["cluster", "needs a token"])
def test_a_cluster_answers_its_call(serve, answer) -> None:
    address = f"127.0.0.1:{serve(answer)}"
    assert find_cluster(FakeRay(), address) == address


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (UNKNOWN_CALL, "another server than a cluster's answers at port"),
        (NOT_FOUND, "another server than a cluster's answers at port"),
        (b"-ERR unknown command 'PRI'\r\n", "another server than a cluster's answers at port"),
        (b"", "another server than a cluster's answers at port"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers at port"),
        (None, "127.0.0.1 does not answer within 1 s"),
    ],
    ids=["other gRPC", "HTTP/2", "redis", "closes", "HTTP", "silent"],
)
def test_another_server_is_refused(serve, monkeypatch, answer, reason) -> None:
    monkeypatch.setattr(ray_address, "_SECONDS", 0.5 if answer is None else 10)
    found = refused(FakeRay(), f"127.0.0.1:{serve(answer)}")
    assert found.startswith(reason.replace("1 s", "0 s"))
    assert "Its port is 6379 by default; 8265 is that of the dashboard" in found


def test_a_machine_that_does_not_answer_is_named(monkeypatch) -> None:
    with silent_port() as port:
        assert refused(FakeRay(), f"127.0.0.1:{port}").startswith(
            f"nothing listens at port {port} of 127.0.0.1"
        )

    def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    error: OSError = socket.gaierror(-2, "Name or service not known")
    assert refused(FakeRay(), "head:6379").startswith("there is no machine named 'head'")
    error = TimeoutError("timed out")
    assert refused(FakeRay(), "head:6379").startswith("head cannot be reached (timed out)")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://head:8265", "this is the address of Ray's dashboard. Pass the cluster's, which "),
        ("https://head/x", "this is the address of Ray's dashboard. Pass the cluster's, which "),
        ("ray://head:10001", "Ray Client cannot be used, because Ray Data does not run on it"),
        ("s3://head", "an address is HOST:PORT"),
        ("head", "an address is HOST:PORT"),
        (":6379", "an address is HOST:PORT"),
        ("head:x", "an address is HOST:PORT"),
        ("head:65536", "an address is HOST:PORT"),
    ],
)
def test_an_address_of_another_kind_is_refused(monkeypatch, address, reason) -> None:
    found = refused(FakeRay(), address)
    assert found.startswith(reason)
    assert ("'head:6379'" in found) == address.startswith(("http", "ray"))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserInputError, match="RAY_ADDRESS="):
        find_cluster(FakeRay(), "auto")


def test_the_cluster_of_this_machine_is_used_if_it_answers(serve) -> None:
    address = f"127.0.0.1:{serve(CLUSTER)}"
    assert find_cluster(FakeRay(here=address), "auto") == address
    # It has ended.
    with silent_port() as port:
        assert find_cluster(FakeRay(here=f"127.0.0.1:{port}"), "auto") is None
    assert find_cluster(FakeRay(), "auto") is None
    assert find_cluster(FakeRay(), "local") is None


def test_another_version_of_ray_is_named(serve) -> None:
    reason = refused(FakeRay(ray="2.53.0"), f"127.0.0.1:{serve(CLUSTER)}")
    assert reason.startswith(
        "the cluster has Ray 2.53.0 and Python 3.12.1, and this process has Ray 2.60.0 and Python "
        + ".".join(map(str, sys.version_info[:3]))
    )


def test_a_machine_without_a_node_is_refused(serve) -> None:
    address = f"127.0.0.1:{serve(CLUSTER)}"
    reason = refused(FakeRay(node="192.0.2.77"), address)
    assert reason.startswith("no node of the cluster runs on this machine.")
    assert f"`ray start --address={address}`" in reason


# Asks a real cluster: at its address, at that of another of its servers, and with other versions.
ASK = """
import json, os, sys

import ray

from qdqbert.common.errors import UserInputError
from qdqbert.integrations.ray_address import find_cluster
from qdqbert.integrations.ray_cluster import usable_nodes

answers = []


def ask(question, *arguments):
    try:
        answers.append(question(*arguments))
    except UserInputError as error:
        answers.append(str(error))


context = ray.init(
    address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
    runtime_env={"env_vars": {"PYTHONPATH": sys.argv[1]}},
)
address = context.address_info["gcs_address"]
ask(lambda: find_cluster(ray, address) == address)
(node,) = ray.nodes()
ask(find_cluster, ray, f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
ray.__version__ = "0.0.1"
ask(find_cluster, ray, address)
ask(usable_nodes, ray)
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_a_real_cluster_is_asked(tmp_path) -> None:
    ray = pytest.importorskip("ray")
    distribution = tmp_path / "qdqbert-0.0.2.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: qdqbert\nVersion: 0.0.2\n")
    own, other, version, nodes = json.loads(run_python("-c", ASK, tmp_path).splitlines()[-1])
    assert own is True
    assert "another server than a cluster's answers" in other
    assert f"the cluster has Ray {ray.__version__} and Python" in version
    assert "and this process has Ray 0.0.1 and Python" in version
    assert "has version 0.0.2. Run `pip install 'qdqbert[ray]==" in nodes
