"""`POST /`, and `POST /models/NAME`: the address of a server or of a model is that of its task.

Clients of text-embeddings-inference and of Inference Endpoints send their requests there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic

from qdqbert.runtime.model import Model
from qdqbert.serving.fields import Body
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route, described
from qdqbert.serving.service import Served


class OwnBody(Body):
    """Body of the route of the model's task."""

    model_config = pydantic.ConfigDict(extra="allow")


def own_route(routes: Sequence[Route]) -> Route:
    """Return the route.

    Args:
        routes: The routes that a request may mean. Those that run its model and know the most of
            its fields are tried in turn, until one takes its body.
    """

    async def run(body: OwnBody, served: Served) -> Response:
        content: dict[str, Any] = body.model_extra or {}
        taken = [
            (len(route.body.unknown(content)), route, route.body)
            for route in routes
            if route.body is not None and route.runs(served.model)
        ]
        least = min(unknown for unknown, *_ in taken)
        errors = []
        for unknown, route, kind in taken:
            if unknown == least:
                try:
                    read = kind.model_validate(content)
                except pydantic.ValidationError as error:
                    errors.append(described(error, kind))
                    continue
                return await route.run(read, served)
        raise errors[0]

    return Route(
        path="/",
        summary="Answer as the route of the model's task",
        tag="text-embeddings-inference",
        run=run,
        body=OwnBody,
        kinds=(Model,),
        example={"inputs": "A fine film."},
    )
