"""Connect to Ray, or start it, and divide its CPUs among actors."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.common.machine import usable_cores
from qdqbert.integrations.ray_address import LOCAL, find_cluster, refuse_client

_LOGGER = logging.getLogger("qdqbert")

# Most CPUs of an actor, unless the caller chooses. More of them share one copy of the model, and
# fewer lose less when one dies.
_GROUP = 4

# Most nodes that a message names.
_NAMED = 5

# Environment variables of the processes that Ray starts: no usage statistics, and no messages about
# restarts, which are expected.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorGroups:
    """The division of a cluster's CPUs or GPUs among actors.

    Attributes:
        threads: Number of CPUs of each actor.
        gpus: Number of GPUs of each actor.
    """

    actors: int
    threads: int
    gpus: int = 0


def import_ray() -> Any:
    """Return the module `ray`, with `ray.data`."""
    require("`ray`", "ray", argument="ray")
    importlib.import_module("ray.data")
    return importlib.import_module("ray")


@contextlib.contextmanager
def open_ray(address: str) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster.

    A Ray that this process is connected to is used, and stays connected. Ray's messages below
    errors are turned off, and its output goes to stderr. A Ray that is started here reports no
    usage statistics.

    Args:
        address: Address of the cluster. For "auto", the one that `RAY_ADDRESS` or a running Ray on
            this machine names. If there is none, or for "local", Ray is started on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        UserInputError: There is no cluster at the address.
    """
    ray = import_ray()
    with _quiet(), contextlib.redirect_stdout(sys.stderr):
        if ray.is_initialized():
            refuse_client(ray)
            yield ray
            return
        _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quiet = {"configure_logging": False, "log_to_driver": False}
    with _environment(), _own_sigterm():
        found = None if address == LOCAL else find_cluster(ray, address)
        if found is None:
            _LOGGER.info("Starting Ray on this machine.")
            ray.init(address=LOCAL, num_cpus=usable_cores(), include_dashboard=False, **quiet)
            return
        try:
            ray.init(address=found, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserInputError(
                f"`ray={address!r}`: Ray cannot connect to the cluster: {error}.", argument="ray"
            ) from error


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by one that ends the process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Set the variables that are not set, for the processes that are started in the block."""
    added = [name for name in _ENVIRONMENT if name not in os.environ]
    os.environ.update({name: _ENVIRONMENT[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("ray", "ray.data")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)


@contextlib.contextmanager
def reporting(ray: Any) -> Iterator[None]:
    """Turn errors of Ray into messages."""
    try:
        yield
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()
        raise UserInputError(
            f"`ray`: Ray stopped the run: {reason[-1] if reason else type(error).__name__}"
        ) from error


def usable_nodes(ray: Any) -> list[Mapping[str, float]]:
    """Return the resources of each node of the cluster, by Ray's names.

    Raises:
        UserInputError: A node does not have this version of this package.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    read_version = _version_reader()
    here = read_version()
    versions = zip(nodes, _on_each(ray, nodes, read_version), strict=True)
    others = [
        f"{node['NodeManagerAddress']} has {f'version {found}' if found else 'none'}"
        for node, found in versions
        if found != here
    ]
    if others:
        more = f", and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise UserInputError(
            f"`ray`: all nodes of the cluster need qdqbert {here}, which this machine has: "
            f"{', '.join(others[:_NAMED])}{more}. Run `pip install 'qdqbert[ray]=={here}'` there.",
            argument="ray",
        )
    return [node["Resources"] for node in nodes]


def _version_reader() -> Callable[[], str | None]:
    # Ray pickles functions of modules by name, and a node may not have this module.
    def version() -> str | None:
        from importlib import metadata

        try:
            return metadata.version("qdqbert")
        except metadata.PackageNotFoundError:
            return None

    return version


def _on_each(ray: Any, nodes: Sequence[Mapping[str, Any]], function: Callable[[], Any]) -> Any:
    """Return what a function returns on each node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(function)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    return ray.get([task.options(scheduling_strategy=each).remote() for each in places])


def divide(
    nodes: Sequence[Mapping[str, float]], threads: int | None, *, on_gpu: bool = False
) -> ActorGroups:
    """Divide the CPUs of a cluster among actors; the GPUs, one for each, for a model on GPUs.

    Args:
        nodes: Resources of each node, by Ray's names.
        threads: Number of CPUs of each actor. By default the largest number up to 4 by which the
            CPUs of all nodes can be divided; 1 on GPUs.
        on_gpu: Whether the model runs on GPUs.

    Raises:
        UserInputError: No node has enough CPUs, or a GPU.
    """
    cores = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    if on_gpu:
        gpus = sum(int(node.get("GPU", 0)) for node in nodes)
        if not gpus:
            raise UserInputError(
                "`device` or `provider` needs a GPU, and no node of the Ray cluster has one.",
                argument="ray",
            )
        return ActorGroups(actors=gpus, threads=threads or 1, gpus=1)
    if threads is None:
        threads = next(
            size for size in range(_GROUP, 0, -1) if all(each % size == 0 for each in cores)
        )
    actors = sum(each // threads for each in cores)
    if not actors:
        raise UserInputError(
            f"`threads={threads}`: no node of the Ray cluster has so many CPUs; the largest one "
            f"has {max(cores, default=0)}. Pass a smaller number.",
            argument="threads",
        )
    return ActorGroups(actors=actors, threads=threads)
