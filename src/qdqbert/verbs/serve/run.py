"""Run the server of `serve`."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qdqbert.errors import UserInputError
from qdqbert.extras import require
from qdqbert.progress import Progress
from qdqbert.reporting.serve import ServeReport
from qdqbert.runtime.model import Model
from qdqbert.serving.models import open_models
from qdqbert.verbs.serve.options import ServeOptions

if TYPE_CHECKING:
    from qdqbert.serving.metrics import Metrics

_LOGGER = logging.getLogger("qdqbert")
_MODULES = ("httptools", "orjson", "prometheus_client", "pydantic", "uvicorn")
_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75
_SWITCH_SECONDS = 0.0005
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(options: ServeOptions, progress: Progress) -> ServeReport:
    """Serve until a signal comes.

    Raises:
        UserInputError: An argument cannot be used.
        MissingExtraError: The extra `serve` is not installed.
    """
    require("`serve`", "serve", _MODULES)
    import uvicorn

    from qdqbert.serving.app import build_app
    from qdqbert.serving.limits import Limits
    from qdqbert.serving.metrics import Metrics
    from qdqbert.serving.protocol import PlainProtocol

    start = time.monotonic()
    metrics = Metrics()
    with open_models(options, progress) as models, _listening(options) as listener:
        app = build_app(
            models,
            metrics=metrics,
            limits=Limits.of(options),
            api_key=options.key,
            allow_origin=options.allow_origin,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=PlainProtocol,
                log_level="warning",
                access_log=False,
                ws="none",
                # Addresses of clients are not used.
                proxy_headers=False,
                # Longer than load balancers keep a connection.
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=options.shutdown_seconds,
            )
        )
        _announce(models, listener)
        with _handled_signals(), _switching_often():
            server.run(sockets=[listener])
    return _report(metrics, time.monotonic() - start)


@contextlib.contextmanager
def _listening(options: ServeOptions) -> Iterator[socket.socket]:
    """Listen on the address.

    Raises:
        UserInputError: It is taken, or is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise UserInputError(
                f"Cannot listen on `host={options.host!r}`, `port={options.port}`: "
                f"{error.strerror or error}. Pass another port, or 0 for any.",
                argument="port",
            ) from error
        yield listener


@contextlib.contextmanager
def _handled_signals() -> Iterator[None]:
    """Do nothing about the signals that stop the server, once it has stopped.

    uvicorn sends them again then, to the handlers from before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda *_: None) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _switching_often() -> Iterator[None]:
    """Let threads take turns more often: a batch that has run waits for the interpreter's lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _announce(models: dict[str, Model], listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    for name, model in models.items():
        _LOGGER.info("Serving %s: %s, %s on %s.", name, model.task, model.target, model.engine)
    _LOGGER.info("Listening on http://%s:%d.", host, port)


def _report(metrics: Metrics, seconds: float) -> ServeReport:
    return ServeReport(
        requests=metrics.total("qdqbert_requests"),
        inputs=metrics.total("qdqbert_inputs"),
        tokens=metrics.total("qdqbert_tokens"),
        seconds=seconds,
    )
