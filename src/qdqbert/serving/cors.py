"""Let pages of other origins use the server from a browser.

A browser asks with OPTIONS before it sends a request with JSON or a key, and shows a response to a
page only if a header allows it.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from qdqbert.serving.limits import Application, Message, Receive, Scope, Send
from qdqbert.serving.responses import TRUNCATED, Response

# Seconds for which a browser may keep the answer to OPTIONS.
_MAX_AGE = 3600
_ANY = "*"


def answering_other_origins(app: Application, origins: Collection[str]) -> Application:
    """Return an application that lets pages of some origins read its responses.

    An origin is such as "https://example.org"; "*" is for all.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin")
        if origin is None:
            await app(scope, receive, send)
            return
        is_allowed = _ANY in origins or origin.decode("latin-1") in origins
        allowed = _allowed(origin, is_any=_ANY in origins) if is_allowed else {b"vary": b"Origin"}
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            asked = _preflight(headers) if is_allowed else {}
            await Response(body=b"", status=204).send(_adding({**allowed, **asked}, send))
            return
        await app(scope, receive, _adding(allowed, send))

    return answer


def _allowed(origin: bytes, *, is_any: bool) -> dict[bytes, bytes]:
    """Return the headers of a response that pages of an origin may read."""
    exposed = {b"access-control-expose-headers": f"{TRUNCATED}, Retry-After".encode()}
    if is_any:
        return {b"access-control-allow-origin": b"*", **exposed}
    return {b"access-control-allow-origin": origin, b"vary": b"Origin", **exposed}


def _preflight(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the headers that allow the request that a browser is about to send."""
    return {
        b"access-control-allow-methods": b"GET, POST",
        # Clients send headers of their own. "*" would not stand for `Authorization`.
        b"access-control-allow-headers": headers.get(b"access-control-request-headers", b""),
        b"access-control-max-age": str(_MAX_AGE).encode(),
    }


def _adding(headers: Mapping[bytes, bytes], send: Send) -> Send:
    """Return a function that sends a response with more headers."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers.items()]}
        await send(message)

    return send_with_headers
