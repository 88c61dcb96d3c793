"""`qdqbert serve` in another process."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

KEY = "secret"
"""The key that requests need."""
SECONDS = 120
"""How long tests wait for something that a busy machine may do late."""


class Server:
    """`qdqbert serve` in another process, at a port that the system chooses."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "qdqbert", "serve", *arguments, "--json", "--port", "0"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"QDQBERT_API_KEY": KEY},
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(r"Listening on (http://\S+)\.", line):
                self.url = found[1]
                return
        raise AssertionError("".join(lines))

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def connect(self) -> contextlib.closing[http.client.HTTPConnection]:
        """Return a connection, which a `with` block closes."""
        return contextlib.closing(http.client.HTTPConnection(*self.address, timeout=SECONDS))

    def stop(self, number: int = signal.SIGTERM) -> tuple[str, str]:
        self.process.send_signal(number)
        try:
            return self.process.communicate(timeout=SECONDS)
        finally:
            self.process.kill()


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Server]:
    """Run a server while the block runs."""
    server = Server(*arguments)
    try:
        yield server
    finally:
        if server.process.returncode is None:
            server.stop()
