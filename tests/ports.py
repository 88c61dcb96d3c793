"""Ports for servers of tests."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])
