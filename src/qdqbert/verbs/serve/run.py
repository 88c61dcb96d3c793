"""Run the server of `serve`, in this process or in several."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.common.machine import usable_cores
from qdqbert.common.progress import Progress
from qdqbert.evidence.reporting.serve import ServeReport
from qdqbert.loading.device_choice import choose_place
from qdqbert.runtime.model import Model
from qdqbert.verbs.serve.options import ServeOptions
from qdqbert.verbs.serve.process import serve_here
from qdqbert.verbs.serve.workers import ServedModel, run_workers

if TYPE_CHECKING:
    from qdqbert.serving.metrics import Metrics

_LOGGER = logging.getLogger("qdqbert")
# Errors about an address that is not this machine's, or of a version that it has turned off.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
# One process answers small requests as fast as about 16 cores run them.
_CORES_OF_A_WORKER = 8


def run(options: ServeOptions, progress: Progress) -> ServeReport:
    """Serve until a signal comes."""
    require("`serve`", "serve")
    from qdqbert.serving.metrics import Metrics
    from qdqbert.serving.models import fetch_models

    # Before models are loaded: the key of the environment may be wrong.
    if options.key is None:
        options.warn_of_empty_key()
    start = time.monotonic()
    # A GPU has room for few copies of a model.
    count = options.workers or 1
    # Processes that are forked cannot use a GPU that was looked at before.
    if options.workers is None and choose_place(options.device).device is None:
        options = dataclasses.replace(options, device=None)
        if sys.platform != "win32":
            count = max(1, usable_cores() // _CORES_OF_A_WORKER)
    with _bound(options, count) as listeners:

        def announce(models: list[ServedModel]) -> None:
            for each in models:
                _LOGGER.info("Serving %s: %s, %s on %s.", *each)
            _LOGGER.info("Listening on %s.", _address(listeners[0]))

        if count > 1:
            # Once, and not in each process.
            fetch_models(options, progress)
            with run_workers(options, listeners, progress, announce) as shared:
                return _report(Metrics(shared), time.monotonic() - start)
        metrics = Metrics()

        def when_ready(models: Mapping[str, Model]) -> None:
            announce(ServedModel.every(models))

        serve_here(options, listeners[0], metrics, progress, when_ready=when_ready)
    return _report(metrics, time.monotonic() - start)


@contextlib.contextmanager
def _bound(options: ServeOptions, count: int) -> Iterator[list[socket.socket]]:
    """Bind a socket for each process to the address. They listen when the models are loaded.

    Linux divides connections among sockets of one address. On other systems, the processes share
    one socket, and one of them may take most connections.
    """
    with contextlib.ExitStack() as stack:
        # Alone, so that an address that another server uses is refused.
        listener = stack.enter_context(_socket(options, options.port))
        port = listener.getsockname()[1]
        if count == 1 or sys.platform != "linux":
            yield [listener] * count
            return
        listener.close()
        yield [stack.enter_context(_socket(options, port, divides=True)) for _ in range(count)]


def _socket(options: ServeOptions, port: int, *, divides: bool = False) -> socket.socket:
    """Return a socket that is bound to the address.

    A name can have several addresses: the first of version 4 that is this machine's is taken, then
    the first of version 6.
    """
    failure: Exception
    try:
        found = socket.getaddrinfo(
            options.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    # A name that no DNS can have, too.
    except (OSError, ValueError) as error:
        raise _refused(options, error) from error
    for family, kind, _, _, address in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        made = None
        try:
            made = socket.socket(family, kind)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if divides:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(address)
        except OSError as error:
            if made is not None:
                made.close()
            failure = error
            if error.errno not in _NOT_HERE:
                break
        else:
            return made
    raise _refused(options, failure) from failure


def _refused(options: ServeOptions, error: Exception) -> UserInputError:
    """Return the error about an address that the server cannot listen on."""
    is_of_name = not isinstance(error, OSError) or isinstance(error, socket.gaierror)
    is_host = is_of_name or getattr(error, "errno", None) in _NOT_HERE
    if options.host.lower().startswith("fe80:") and "%" not in options.host:
        is_host, advice = True, f"the interface, too, such as {options.host}%eth0"
    elif is_host:
        advice = "an address of this machine as `host`, or 0.0.0.0 for all of them"
    else:
        advice = "another port, or 0 for any"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UserInputError(
        f"Cannot listen on `host={options.host!r}`, `port={options.port}`: {reason}. "
        f"Pass {advice}.",
        argument="host" if is_host else "port",
    )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _report(metrics: Metrics, seconds: float) -> ServeReport:
    return ServeReport(
        requests=metrics.total("qdqbert_requests"),
        inputs=metrics.total("qdqbert_inputs"),
        tokens=metrics.total("qdqbert_tokens"),
        seconds=seconds,
    )
