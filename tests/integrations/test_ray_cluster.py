"""Connecting to Ray, and dividing its CPUs among actors."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import types
from typing import Any

import pytest

import qdqbert
from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.integrations import ray_cluster
from qdqbert.integrations.ray_cluster import ActorGroups, divide, open_ray, usable_nodes


class FakeRay:
    """Counts what is called."""

    def __init__(self, *, is_initialized: bool = False, by_client: bool = False) -> None:
        self.calls: list[Any] = []
        self.environment: dict[str, str] = {}
        self._is_initialized = is_initialized
        client = types.SimpleNamespace(is_connected=lambda: by_client)
        self.util = types.SimpleNamespace(client=types.SimpleNamespace(ray=client))

    def is_initialized(self) -> bool:
        return self._is_initialized

    def init(self, address: str, **options: Any) -> None:
        self.calls.append(address)
        self.environment = dict(os.environ)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        assert address != "local" or options["num_cpus"] >= 1

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@pytest.fixture
def install(monkeypatch):
    def use(ray: FakeRay, found: str | None = None) -> FakeRay:
        monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
        monkeypatch.setattr(ray_cluster, "find_cluster", lambda ray, address: found)
        return ray

    return use


def test_ray_is_started_and_stopped_without_usage_statistics(install, capsys, monkeypatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    ray = install(FakeRay())
    with open_ray("auto"):
        assert logging.getLogger("ray.data").level == logging.ERROR
        sys.stdout.write("from a node\n")
    assert ray.calls == ["local", "shutdown"]
    assert ray.environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ
    assert logging.getLogger("ray.data").level != logging.ERROR
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "from a node" in printed.err


def test_a_local_ray_is_started_without_looking_for_another(install) -> None:
    ray = install(FakeRay(), "10.0.0.1:6379")
    with open_ray("local"):
        pass
    assert ray.calls == ["local", "shutdown"]


def test_ray_is_connected_to_the_cluster_that_was_found(install) -> None:
    ray = install(FakeRay(), "10.0.0.1:6379")
    with open_ray("auto"):
        pass
    assert ray.calls == ["10.0.0.1:6379", "shutdown"]


def test_a_ray_that_is_connected_stays(install) -> None:
    ray = install(FakeRay(is_initialized=True))
    with open_ray("auto"):
        pass
    assert ray.calls == []
    install(FakeRay(is_initialized=True, by_client=True))
    with pytest.raises(UserInputError, match="`ray`: Ray Client cannot be used"), open_ray("auto"):
        pass


def test_sigterm_does_what_it_did_before_ray_was_connected(install) -> None:
    install(FakeRay())
    before = signal.getsignal(signal.SIGTERM)
    with open_ray("local"):
        assert signal.getsignal(signal.SIGTERM) is before


def test_what_ray_says_of_a_connection_is_a_message(install, monkeypatch) -> None:
    ray = install(FakeRay(), "10.0.0.1:6379")

    def fail(address: str, **options: Any) -> None:
        raise RuntimeError("no socket")

    monkeypatch.setattr(ray, "init", fail)
    with (
        pytest.raises(UserInputError, match=r"`ray='head:6379'`: Ray cannot connect .* no socket"),
        open_ray("head:6379"),
    ):
        pass


def test_a_missing_ray_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[ray\]'"),
        open_ray("auto"),
    ):
        pass


@pytest.mark.parametrize(
    ("cpus", "threads", "expected"),
    [
        ([2], None, (1, 2)),
        ([8, 8], None, (4, 4)),
        ([0, 6, 6], None, (4, 3)),
        ([7, 4], None, (11, 1)),
        ([16, 8], 8, (3, 8)),
        ([7, 4], 2, (5, 2)),
    ],
)
def test_cpus_are_divided_by_node(cpus, threads, expected) -> None:
    groups = divide([{"CPU": float(count)} for count in cpus], threads)
    assert (groups.actors, groups.threads, groups.gpus) == (*expected, 0)


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ([None, "HERE"], "0.0.0.0 has none. Run"),
        (["HERE", "0.0.1"], "0.0.0.1 has version 0.0.1. Run"),
        ([None] * 7, "0.0.0.4 has none, and 2 more. Run"),
    ],
)
def test_nodes_without_this_version_are_named(monkeypatch, versions, message) -> None:
    found = [qdqbert.__version__ if each == "HERE" else each for each in versions]
    monkeypatch.setattr(ray_cluster, "_on_each", lambda ray, nodes, function: found)
    nodes = [
        {"Alive": True, "Resources": {}, "NodeManagerAddress": f"0.0.0.{index}"}
        for index in range(len(found))
    ]
    ray = types.SimpleNamespace(nodes=lambda: [{"Alive": False}, *nodes])
    with pytest.raises(UserInputError, match=re.escape(message)) as caught:
        usable_nodes(ray)
    assert f"`pip install 'qdqbert[ray]=={qdqbert.__version__}'` there." in str(caught.value)


def test_a_gpu_is_an_actor() -> None:
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0}]
    assert divide(nodes, None, on_gpu=True) == ActorGroups(actors=2, threads=1, gpus=1)
    with pytest.raises(UserInputError, match="no node of the Ray cluster has one"):
        divide(nodes[1:], None, on_gpu=True)


def test_more_threads_than_a_node_has_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"`threads=16`: .* has 8"):
        divide([{"CPU": 8.0}], 16)
