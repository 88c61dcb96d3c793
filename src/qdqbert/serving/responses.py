"""Responses as JSON."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from qdqbert.serving.limits import BadRequestError

OPENAI_PREFIX = "/v1/"
_OPENAI_KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


def json_response(content: Any, status: int = 200) -> Response:
    """Return a response with JSON. Arrays of numpy become lists."""
    return Response(
        orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY),
        status_code=status,
        media_type="application/json",
    )


def error_response(error: BadRequestError, path: str) -> Response:
    """Return the response about an error, in the form of the route's protocol."""
    content: dict[str, Any] = {"error": str(error), "error_type": error.kind}
    if path.startswith(OPENAI_PREFIX):
        kind = _OPENAI_KINDS.get(error.status, "invalid_request_error")
        details = {"message": str(error), "type": kind, "param": None, "code": error.kind}
        content = {"error": details}
    response = json_response(content, error.status)
    response.headers.update(error.headers)
    return response
