"""One route for each task, with the bodies and answers of Hugging Face's inference API.

    POST /token-classification {"inputs": "...", "parameters": {"aggregation_strategy": "first"}}

Answers are the same as from transformers' pipelines. A list of inputs gets a list of answers.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any

import pydantic
from pydantic import ConfigDict, Field, create_model

from qdqbert.runtime.model import Model
from qdqbert.runtime.routes import TaskRoute
from qdqbert.serving.fields import Body, in_parameters
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served
from qdqbert.tasks.gliner2 import EXTRACT_JSON, SchemaExtractor
from qdqbert.tasks.registry import TASKS

_STRICT = ConfigDict(extra="forbid")


class _Parameters(Body):
    model_config = _STRICT


def task_routes() -> list[Route]:
    """Return a route for each task, which may have the name of a model in its path.

    A method that is no task of its own has one, too.
    """
    routes = [
        _route(name, task.model, task.route)
        for name, task in TASKS.items()
        if task.model is not None and task.route is not None
    ]
    return [*routes, _route("extract-json", SchemaExtractor, EXTRACT_JSON)]


def _route(name: str, kind: type[Model], route: TaskRoute) -> Route:
    async def run(body: Any, served: Served) -> Response:
        given = body.parameters.model_dump()
        is_one = not isinstance(body.inputs, list)
        items = [body.inputs] if is_one else body.inputs
        # Jobs take texts, and mappings with the fields of the other inputs.
        inputs = [each if isinstance(each, str) else dataclasses.asdict(each) for each in items]
        found = await served.run(route.method, given, inputs)
        answers = [route.answer(each, given) for each in found.each]
        return found.response(answers[0] if is_one and not route.wraps_one else answers)

    return Route(
        path=f"/{name}",
        summary=f"Run {name}",
        tag="tasks",
        run=run,
        body=_body(name, kind, route),
        kinds=(kind, *route.also),
        fits=route.fits,
        example={
            "inputs": route.example,
            **({"parameters": route.example_parameters} if route.example_parameters else {}),
        },
    )


def _body(name: str, kind: Any, route: TaskRoute) -> type[Body]:
    """Return the type of a request."""
    title = "".join(part.title() for part in name.split("-"))
    types = typing.get_type_hints(getattr(kind, route.method)) if route.parameters else {}
    fields: dict[str, Any] = {
        name: (types[name], default) for name, default in route.parameters.items()
    }
    parameters = create_model(f"{title}Parameters", __base__=_Parameters, **fields)
    strict = pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
    one: Any = typing.Union[*(each if each is str else strict(each) for each in route.inputs)]
    several: Any = Annotated[list[one], Field(min_length=1)]
    inputs: Any = one | several
    default: Any = ... if ... in route.parameters.values() else parameters()
    made = create_model(
        f"{title}Body", __base__=Body, inputs=(inputs, ...), parameters=(parameters, default)
    )
    made.renamed = in_parameters(parameters)
    return made
