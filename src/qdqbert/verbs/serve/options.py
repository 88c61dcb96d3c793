"""Options of `serve`."""

from __future__ import annotations

from qdqbert.options import option
from qdqbert.serving.options import ServerOptions
from qdqbert.verbs.call import Call


class ServeOptions(ServerOptions, Call):
    """Common options.

    Attributes:
        host: Address to listen on. "0.0.0.0" accepts requests from other machines.
        port: Port to listen on; 0 takes any free one.
        shutdown_seconds: Time to answer the accepted requests after a signal to stop.
    """

    host: str = "127.0.0.1"
    port: int = option(default=8000, at_least=0, at_most=65535)
    shutdown_seconds: int = option(default=30, at_least=0)
