"""Routes that read their body with pydantic alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pydantic
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response


class BodyRoute(APIRoute):
    """A route whose function takes a `body`, and optionally the `request`.

    FastAPI describes it as any other route. It would read the body as JSON first and then as the
    type of the body, after looking for all kinds of arguments, which takes longer than small texts
    take to run.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        field = self.body_field
        if field is None:
            return super().get_route_handler()
        function = self.endpoint
        body_type: type[pydantic.BaseModel] = field.field_info.annotation  # type: ignore[assignment]
        takes_request = "request" in function.__annotations__

        async def handle(request: Request) -> Response:
            try:
                body = body_type.model_validate_json(await request.body())
            except pydantic.ValidationError as error:
                raise RequestValidationError(error.errors()) from error
            given = {"request": request} if takes_request else {}
            response: Response = await function(body=body, **given)
            return response

        return handle
