"""Serve in this process."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.runtime.model import Model
from qdqbert.serving.models import open_models
from qdqbert.verbs.serve.options import ServeOptions

if TYPE_CHECKING:
    from qdqbert.serving.metrics import Metrics

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SWITCH_SECONDS = 0.0005


def serve_here(
    options: ServeOptions,
    listener: socket.socket,
    metrics: Metrics,
    progress: Progress,
    *,
    when_ready: Callable[[Mapping[str, Model]], None],
    running_workers: Callable[[], int] | None = None,
) -> None:
    """Serve until a signal comes.

    `when_ready` is called with the models when the server accepts connections, and
    `running_workers` returns how many processes of the server run, if it has several.
    """
    from qdqbert.serving.app import build_app
    from qdqbert.serving.limits import Limits
    from qdqbert.serving.server import Server

    with open_models(options, progress) as models:
        app = build_app(
            models,
            metrics=metrics,
            limits=Limits.of(options),
            api_key=options.key,
            allow_origin=options.allow_origin,
            running_workers=running_workers,
        )
        server = Server(
            app, shutdown_seconds=options.shutdown_seconds, when_ready=lambda: when_ready(models)
        )
        with _handled_signals(), _switching_often():
            server.run(sockets=[listener])


@contextlib.contextmanager
def _handled_signals() -> Iterator[None]:
    """Ignore the signals that stop the server, once it has stopped.

    uvicorn then sends them again, to the earlier handlers.
    """
    with handling_signals(lambda: None):
        yield


@contextlib.contextmanager
def handling_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function for the signals that stop the server. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, lambda *_: stop()) for each in SIGNALS}
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
