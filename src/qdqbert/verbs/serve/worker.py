"""A process of a server, which `workers` starts with a request on stdin."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from qdqbert.common.errors import QdqBertError
from qdqbert.common.progress import Silent
from qdqbert.runtime.model import Model
from qdqbert.verbs.serve.options import ServeOptions
from qdqbert.verbs.serve.process import serve_here
from qdqbert.verbs.serve.workers import RUNNING, ServedModel


def main() -> None:
    """Serve until a signal comes, or the parent dies."""
    request = json.loads(sys.stdin.buffer.readline())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cpus"])
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    from qdqbert.serving.metrics import Metrics

    folder, messages = Path(request["folder"]), request["messages"]

    def when_ready(models: Mapping[str, Model]) -> None:
        _send(messages, {"models": ServedModel.every(models)})

    def running_workers() -> int:
        return int((folder / RUNNING).read_text())

    with socket.socket(fileno=request["listener"]) as listener:
        try:
            serve_here(
                ServeOptions(**request["options"]),
                listener,
                Metrics(folder),
                Silent(),
                when_ready=when_ready,
                running_workers=running_workers,
            )
        except QdqBertError as error:
            kind, text = type(error).__name__, str(error)
            _send(messages, {"error": text, "kind": kind, "argument": error.argument})
            sys.exit(1)


def _send(messages: int, content: Mapping[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(messages, json.dumps(content).encode() + b"\n")


def _stop_with_parent() -> None:
    # Not through `sys.stdin`, whose lock a thread must not hold when Python ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
