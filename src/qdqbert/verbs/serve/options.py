"""Options of `serve`."""

from __future__ import annotations

import sys

from qdqbert.common.errors import UserInputError
from qdqbert.common.options.declared import option
from qdqbert.pipeline.calls import Call
from qdqbert.serving.options import ServerOptions


class ServeOptions(ServerOptions, Call):
    """Common options.

    Attributes:
        host: Address to listen on, or a name of this machine. "0.0.0.0" accepts requests from other
            machines, and "::" also those with IPv6.
        port: Port to listen on; 0 takes any free one.
        workers: Number of processes that answer requests, each with its share of the cores. They
            share the port. One process feeds about 16 cores with small requests. By default one
            for each 8 cores, and at least one; on a GPU one. Not on Windows.
        shutdown_seconds: Time to answer the accepted requests after a signal to stop.
    """

    host: str = "127.0.0.1"
    port: int = option(default=8000, at_least=0, at_most=65535)
    workers: int | None = option(default=None, at_least=1, at_most=256)
    shutdown_seconds: int = option(default=30, at_least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.host.strip():
            raise UserInputError(
                "`host` is empty, which would mean all addresses. Pass 127.0.0.1 for requests of "
                "this machine, or 0.0.0.0 for those of others, too.",
                argument="host",
            )
        if (self.workers or 1) > 1 and sys.platform == "win32":
            raise UserInputError(
                f"`workers={self.workers}` needs a system whose processes can share a port. "
                "Windows has none; start several servers on ports of their own.",
                argument="workers",
            )
