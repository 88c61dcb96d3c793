"""The routes that SageMaker asks of a container: `/ping` and `/invocations`.

Source: https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from qdqbert.runtime.model import Model
from qdqbert.serving.responses import Health, Response, json_response
from qdqbert.serving.routing import Route

_TAG = "SageMaker"


def sagemaker_routes(models: Sequence[Model], routes: Sequence[Route]) -> list[Route]:
    """Return the routes.

    A container of SageMaker has a single model. `/invocations` is the first of `routes` that runs
    it, and does not exist if there are several models.
    """
    summary = "Say whether the server answers"
    made = [Route(path="/ping", summary=summary, tag=_TAG, run=_ping, answer=Health)]
    if len(models) == 1:
        own = next((each for each in routes if each.runs(models[0])), None)
        if own is not None:
            summary = f"Answer as {own.path}"
            made.append(dataclasses.replace(own, path="/invocations", summary=summary, tag=_TAG))
    return made


async def _ping(body: None, served: None) -> Response:
    return json_response({"status": "ok"})
