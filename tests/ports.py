"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

# Below those that systems give to connections, so that none of them takes it meanwhile.
_FIRST, _LAST = 20_000, 32_000


def free_port() -> int:
    """Return a port that no program listens on."""
    ports = random.SystemRandom()
    while True:
        port = ports.randrange(_FIRST, _LAST)
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Keep a port while the block runs, which no program listens on."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        yield int(each.getsockname()[1])
