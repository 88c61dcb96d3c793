"""HTTP/1.1 for clients that offer another protocol, as Java's HttpClient does by default.

    POST /embed HTTP/1.1                         POST /embed HTTP/1.1
    Connection: Upgrade, HTTP2-Settings     ─►   Content-Length: 14
    Upgrade: h2c
    HTTP2-Settings: AAEAAEAAAAI                  {"inputs":"a"}
    Content-Length: 14

    {"inputs":"a"}

A server may ignore the offer (RFC 9110, section 7.8). httptools leaves out the body instead, and
uvicorn answers a request without it. So the head is read again, without the offer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# How long after a connection was made its first request may come while the server ends.
_FIRST_REQUEST_SECONDS = 1.0
_ENDING = b'{"error":"The server is ending. Send the request again.","error_type":"Unhealthy"}'
_CUT = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_ENDING), _ENDING)
)
# Headers of an offer; RFC 7540, section 3.2.
_OFFER = (b"upgrade", b"http2-settings")


class PlainProtocol(HttpToolsProtocol):
    """A connection of uvicorn that ignores offers of other protocols, and sends responses whole."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waits_until = self.loop.time() + _FIRST_REQUEST_SECONDS
        self._is_ending = False
        self.use_new_parser()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Answer the requests of a connection."""
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]

    def shutdown(self) -> None:
        """Close the connection, after the answer to its request.

        The request of a new connection may be on its way.
        """
        self._is_ending = True
        if self.cycle is None and self.loop.time() < self._waits_until:
            self.loop.call_at(self._waits_until, self._close_unused)
        else:
            super().shutdown()

    def _close_unused(self) -> None:
        if self.cycle is None:
            self.transport.close()

    def cut(self) -> None:
        """Close the connection now, with status 503 for a request that has no answer yet."""
        if self.transport.is_closing():
            return
        has_begun = self.cycle is None or self.cycle.response_started or bool(self.pipeline)
        if has_begun or self.flow.write_paused:
            self.transport.abort()
            return
        self.transport.write(_CUT)
        self.transport.close()
        # As if the client had gone: the application must not answer, too.
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def use_new_parser(self) -> None:
        """Read what comes next with a parser of its own."""
        self.parser = _Parser(self)
        # As uvicorn does, for requests that follow one with `Connection: close`.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def has_offer(self) -> bool:
        """Return whether the request offers another protocol, other than a tunnel (CONNECT)."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_headers_complete(self) -> None:
        """Start a request, unless its head will be read again."""
        if not self.has_offer():
            super().on_headers_complete()
            if self._is_ending and self.cycle is not None:
                self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """End a request, unless its head will be read again."""
        if not self.has_offer():
            super().on_message_complete()

    def head_without_offer(self) -> bytes:
        """Return the head of the request that is being read, without the offer."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            kept = _without_offer(value) if name == b"connection" else value
            if name not in _OFFER and (kept or not value):
                lines.append(b"%s: %s" % (name, kept))
        return b"\r\n".join([*lines, b"", b""])


class _Joined:
    """A transport that writes the head and the body of a response together.

    uvicorn writes one after the other, and each write to a socket takes as long as parsing a
    request.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write data, together with what follows before the event loop goes on."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        # The client may have gone.
        if parts and not self._transport.is_closing():
            self._transport.writelines(parts)


class _Parser(httptools.HttpRequestParser):
    """A parser that reads the head of a request again if it has an offer."""

    def __init__(self, protocol: PlainProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Read data; raise httptools' errors."""
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._protocol.has_offer():
                raise
            (end,) = offer.args
            head = self._protocol.head_without_offer()
            self._protocol.use_new_parser()
            self._protocol.parser.feed_data(head + data[end:])


def _without_offer(value: bytes) -> bytes:
    """Return the value of the header `Connection` without the names that belong to an offer."""
    names = [name.strip() for name in value.split(b",")]
    return b", ".join(name for name in names if name.lower() not in _OFFER)
