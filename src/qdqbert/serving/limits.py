"""Limits of a server: sizes of requests, and who may send them."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from qdqbert.serving.options import ServerOptions

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# Paths that need no key: load balancers ask them.
_OPEN_PATHS = ("/health", "/ping")
# Bytes of a body that are read although it is too large.
_DRAINED = 64_000_000
_MOST_DIGITS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        max_body: Largest body of a request in bytes.
        max_texts: Number of inputs in a request, and of labels that it names.
        max_queued: Number of inputs that may wait for a model.
        max_read_characters: Longest input that is read whole: by a model that reads windows, or by
            a tokenizer that does not cut.
        max_states: Number of tokens of which a response has the states.
        body_seconds: Time that a client has to send a body.
    """

    max_body: int = 2_000_000
    max_texts: int = 2048
    max_queued: int = 16_384
    # 100,000 tokens at most, which take some 40 MB and 10 s on a core.
    max_read_characters: int = 100_000
    # Some 150 MB of JSON from a model with 768 dimensions.
    max_states: int = 16_384
    body_seconds: float = 30.0

    @classmethod
    def of(cls, options: ServerOptions) -> Limits:
        """Return the limits that options set."""
        return cls(
            max_body=options.max_body, max_texts=options.max_texts, max_queued=options.max_queued
        )


class BadRequestError(Exception):
    """A request that cannot be answered.

    Attributes:
        kind: Kind of error, as text-embeddings-inference names it.
    """

    def __init__(
        self,
        message: str,
        status: int = 422,
        kind: str = "Validation",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}


class BodyReader:
    """Checks the key of a request and reads its body, within the limits."""

    def __init__(self, limits: Limits, api_key: str | None) -> None:
        """Keep the limits, and the key that requests need as `Authorization: Bearer KEY`."""
        self._limits = limits
        self._key = None if api_key is None else api_key.encode()

    @property
    def seconds(self) -> float:
        """Time that a client has to send a body."""
        return self._limits.body_seconds

    async def read(
        self, path: str, headers: Iterable[tuple[bytes, bytes]], receive: Receive
    ) -> bytes | None:
        """Return the body of a request; `None` if the client has gone.

        Raises:
            BadRequestError: The key is missing or wrong (401), or the body is compressed (415) or
                too large (413).
        """
        named = dict(headers)
        self._check_key(path, named.get(b"authorization", b""))
        coding = named.get(b"content-encoding", b"identity").decode("latin-1")
        if coding.strip().lower() not in ("", "identity"):
            # As RFC 9110, section 15.5.16.
            raise BadRequestError(
                f"`Content-Encoding: {coding}` is not served. Send the body as it is.",
                415,
                headers={"Accept-Encoding": "identity"},
            )
        declared = named.get(b"content-length", b"")
        size = int(declared[:_MOST_DIGITS]) if declared.isdigit() else 0
        # A client that asks before it sends its body is answered without it.
        if size > self._limits.max_body and (size > _DRAINED or b"expect" in named):
            raise self._too_large(is_read=False)
        return await self._body(receive)

    def _check_key(self, path: str, given: bytes) -> None:
        if self._key is None or path in _OPEN_PATHS:
            return
        # As RFC 9110, section 11.4: the case of the scheme does not matter.
        scheme, _, key = given.strip().partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            raise BadRequestError(
                "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`.",
                401,
                "Unauthorized",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the body; `None` if the client has gone.

        One that is too large is read, too: many clients see the response only after they have sent
        everything.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self._limits.max_body:
                parts.clear()
            else:
                parts.append(part)
            is_read = not message.get("more_body", False)
            if size > self._limits.max_body and (is_read or size > _DRAINED):
                raise self._too_large(is_read=is_read)
            if is_read:
                return b"".join(parts)

    def too_slow(self) -> BadRequestError:
        """Return the error about a body that did not arrive in time."""
        return BadRequestError(
            f"The body took longer than {self.seconds:g} seconds to arrive.",
            408,
            "Timeout",
            headers={"Connection": "close"},
        )

    def _too_large(self, *, is_read: bool) -> BadRequestError:
        return BadRequestError(
            f"The body is larger than {self._limits.max_body} bytes. Send fewer texts at a time.",
            413,
            headers={} if is_read else {"Connection": "close"},
        )
