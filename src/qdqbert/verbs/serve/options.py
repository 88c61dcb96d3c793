"""Options of `serve`."""

from __future__ import annotations

import dataclasses

from qdqbert.options import option
from qdqbert.serving.options import ServerOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions(ServerOptions):
    """Options of `serve`, whose docstring describes them."""

    host: str = "127.0.0.1"
    port: int = option(8000, at_least=0, at_most=65535)
    shutdown_seconds: int = option(30, at_least=0)
