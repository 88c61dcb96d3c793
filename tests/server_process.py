"""`qdqbert serve` in another process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from ports import free_port

KEY = "secret"
"""The key that requests need."""


class Server:
    """`qdqbert serve` in another process."""

    def __init__(self, *arguments: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "qdqbert", "serve", *arguments, "--json"]
        self.process = subprocess.Popen(
            [*command, "--port", self.url.rpartition(":")[2]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"QDQBERT_API_KEY": KEY},
        )
        end = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> tuple[str, str]:
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Server]:
    """Run a server while the block runs."""
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.stop()
