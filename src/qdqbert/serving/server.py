"""A server of uvicorn whose end leaves no request without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from qdqbert.serving.limits import Application
from qdqbert.serving.protocol import PlainProtocol

# Longer than load balancers keep a connection.
_KEEP_ALIVE_SECONDS = 75
# After connections were cut, which ends their requests.
_END_SECONDS = 3


class Server(uvicorn.Server):
    """A server that cuts what is left at its limit, and at a second Ctrl+C.

    uvicorn would cancel the requests, answer them with status 500 and log a traceback for each.
    """

    def __init__(
        self, app: Application, *, shutdown_seconds: int, when_ready: Callable[[], None]
    ) -> None:
        """Keep what runs.

        Args:
            app: The application.
            shutdown_seconds: Time to answer the accepted requests after a signal to stop.
            when_ready: Called when the server accepts connections.
        """
        config = uvicorn.Config(
            app,
            http=PlainProtocol,
            log_level="warning",
            access_log=False,
            ws="none",
            # Addresses of clients are not used.
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=shutdown_seconds + _END_SECONDS,
        )
        super().__init__(config)
        self._shutdown_seconds, self._when_ready = shutdown_seconds, when_ready
        self._loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._when_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and answer what was accepted."""
        limit = self._loop.call_later(self._shutdown_seconds, self._cut)
        for listener in sockets or ():
            await self._accept_waiting(listener)
        await super().shutdown(sockets)
        limit.cancel()

    async def _accept_waiting(self, listener: socket.socket) -> None:
        """Accept the connections that wait, which the system would reset with the listener."""
        config, state = self.config, self.server_state
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted, _ = listener.accept()
                await self._loop.connect_accepted_socket(
                    lambda: PlainProtocol(config, state, self.lifespan.state), accepted
                )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop soon, or at once at a second Ctrl+C."""
        super().handle_exit(sig, frame)
        if self.force_exit:
            self.force_exit = False
            self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for each in list(self.server_state.connections):
            if isinstance(each, PlainProtocol):
                each.cut()
