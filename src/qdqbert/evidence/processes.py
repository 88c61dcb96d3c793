"""Processes that answer requests, so that one measurement does not disturb another.

A request and its answer are a line of JSON each, on stdin and stdout.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from qdqbert.common.errors import QdqBertError


class WorkerProcess:
    """A process that answers requests. Made by `open_worker`."""

    def __init__(self, process: subprocess.Popen[str], what: str) -> None:
        self._process = process
        self._what = what

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            QdqBertError: The process failed. The message has the last line that it wrote.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            last_line = self._process.stderr.read().strip().split("\n")[-1]
            raise QdqBertError(f"Timing {self._what} failed: {last_line}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def open_worker(module: str, what: str) -> Iterator[WorkerProcess]:
    """Start a process, and end it after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield WorkerProcess(process, what)
    finally:
        process.kill()
        process.communicate()


def serve(answers: Callable[[Iterator[dict[str, Any]]], Iterator[dict[str, Any]]]) -> None:
    """Answer requests from stdin on stdout until stdin ends."""
    for answer in answers(json.loads(line) for line in sys.stdin):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
