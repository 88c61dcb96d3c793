"""`POST /`, and `POST /models/NAME`: the address of a server or of a model is that of its task.

Clients of text-embeddings-inference and of Inference Endpoints send their requests there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pydantic

from qdqbert.runtime.model import Model
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route, described
from qdqbert.serving.service import Served


class OwnBody(pydantic.BaseModel):
    """Body of the route of the model's task."""

    model_config = pydantic.ConfigDict(extra="allow")


def own_route(routes: Sequence[Route]) -> Route:
    """Return the route.

    Args:
        routes: The routes that a request may mean. It is answered by the first one that runs its
            model and takes its body.
    """

    async def run(body: OwnBody, served: Served) -> Response:
        content: dict[str, Any] = body.model_extra or {}
        errors = []
        for route in routes:
            if route.body is not None and isinstance(served.model, route.kinds):
                try:
                    read = route.body.model_validate(content)
                except pydantic.ValidationError as error:
                    errors.append(described(error, route.body))
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
