"""Responses, most of them as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NotRequired

import orjson
from typing_extensions import TypedDict

from qdqbert.serving.limits import BadRequestError, Send

TRUNCATED = "X-Truncated-Inputs"
"""Header with the number of inputs that were cut."""

# Characters of a message that are shown. Names that requests make up can have any length.
_HEAD, _TAIL = 300, 1000
_OPENAI_KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}

ErrorForm = Callable[[BadRequestError, str], Any]
"""Returns the body of the response about an error, from the error and its message. Its return
annotation describes the body."""


class Health(TypedDict):
    """The state of the server, and the number of its running processes if it has several.

    While none of them is ready, the state is "starting", with status 503.
    """

    status: Literal["ok", "starting"]
    workers: NotRequired[int]


class PlainError(TypedDict):
    """An error."""

    error: str
    error_type: str


class OpenAIErrorDetails(TypedDict):
    """An error."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(TypedDict):
    """An error, in the form of OpenAI's service."""

    error: OpenAIErrorDetails


@dataclasses.dataclass(frozen=True, kw_only=True)
class Response:
    """A response.

    Attributes:
        headers: Headers, without that of the type.
    """

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    async def send(self, send: Send) -> None:
        """Pass it on to the server that runs the application."""
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", str(len(self.body)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in self.headers.items()),
        ]
        start = {"type": "http.response.start", "status": self.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def json_response(content: Any, *, truncated: int = 0) -> Response:
    """Return a response with JSON.

    Arrays of numpy become lists. A header says how many inputs were `truncated`.
    """
    return Response(
        body=orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY),
        headers={TRUNCATED: str(truncated)} if truncated else {},
    )


def plain_error(error: BadRequestError, message: str) -> PlainError:
    """Return the body about an error, as text-embeddings-inference writes it."""
    return {"error": message, "error_type": error.kind}


def openai_error(error: BadRequestError, message: str) -> OpenAIError:
    """Return the body about an error, as OpenAI's service writes it."""
    kind = _OPENAI_KINDS.get(error.status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": error.kind}}


def error_response(error: BadRequestError, form: ErrorForm) -> Response:
    """Return the response about an error, in the form of the route's protocol."""
    content = form(error, shortened(str(error)))
    return dataclasses.replace(
        json_response(content), status=error.status, headers=dict(error.headers)
    )


def shortened(message: str) -> str:
    """Return a message without its middle, if it is long."""
    if len(message) <= _HEAD + _TAIL:
        return message
    return f"{message[:_HEAD]} ... {message[-_TAIL:]}"
