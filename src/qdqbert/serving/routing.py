"""Which function answers a request, and how requests describe errors.

Routes are found by looking up their path, and bodies are read by pydantic alone. A web framework
takes longer for that than a short text takes to run.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from qdqbert.common.choices import VectorKind
from qdqbert.common.json_files import unique_pairs
from qdqbert.runtime.model import Model
from qdqbert.serving.fields import Body
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.responses import (
    ErrorForm,
    Response,
    error_response,
    openai_error,
    plain_error,
    shortened,
)
from qdqbert.serving.service import Models
from qdqbert.tasks.embedder import Embedder

MODEL_PREFIX = "/models/"
"""The name of a model and the path of a route can follow."""

NAME = "{model}"
"""Stands for the name of a model at the end of a path."""

# Paths that no route has get errors in the form of OpenAI's, if their clients expect it.
_OPENAI_PREFIX = "/v1/"

_UNIQUE = json.JSONDecoder(object_pairs_hook=unique_pairs)

_LOGGER = logging.getLogger("qdqbert")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Route:
    """A path that the server answers.

    Attributes:
        path: The path. It may end with `{model}`, the name of a model. The name can also stand in
            front of the path of a route that runs models.
        summary: Its purpose, in a few words.
        tag: The protocol that it belongs to.
        run: Returns the response. It gets the body, which is `None` for a GET, and the `Served`
            model that the request means, which is `None` for a route without `kinds`.
        body: Type of the body of a POST. `None` for a route that answers GET.
        kinds: Kinds of models that it runs; empty if it runs none.
        needs: What an embedder must make of a text to be run.
        fits: Whether a model of these kinds is one that it runs.
        answer: Type of the content of a response.
        example: A body, to show how the route is called.
    """

    path: str
    summary: str
    tag: str
    run: Callable[[Any, Any], Awaitable[Response]]
    body: type[Body] | None = None
    kinds: tuple[type[Model], ...] = ()
    needs: VectorKind = "dense"
    fits: Callable[[Any], bool] = lambda model: True
    answer: Any = Any
    media_type: str = "application/json"
    example: Mapping[str, Any] | None = None
    error_form: ErrorForm = plain_error

    @property
    def takes_model(self) -> bool:
        """Whether the name of a model can stand in front of the path."""
        return bool(self.kinds) and not self.path.endswith(NAME)

    def runs(self, model: Model) -> bool:
        """Return whether it runs a model."""
        has_vectors = not isinstance(model, Embedder) or self.needs in model.vector_kinds
        return isinstance(model, self.kinds) and has_vectors and self.fits(model)

    @property
    def methods(self) -> tuple[str, ...]:
        """HTTP methods that it answers, the usual one first."""
        return ("GET", "HEAD") if self.body is None else ("POST",)


Found = tuple[Route, str | None] | None
"""The route of a request, and the name of the model in its path; `None` if there is no route."""


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        # A path can have a route for GET and one for POST.
        self._routes = {(route.path, route.body is None): route for route in routes}
        self._prefixes = {
            route.path.removesuffix(NAME): route for route in routes if route.path.endswith(NAME)
        }

    def find(self, path: str, method: str = "POST") -> Found:
        """Return the route of a path, and the name of the model in it; `None` if there is none.

        If there is a route for another method only, it is returned.
        """
        route = self._at(path, method)
        if route is not None:
            return route, None
        for prefix, route in self._prefixes.items():
            if path.startswith(prefix):
                return route, path.removeprefix(prefix)
        if not path.startswith(MODEL_PREFIX):
            return None
        model, _, rest = path.removeprefix(MODEL_PREFIX).partition("/")
        # The address of a model alone is that of its own route.
        route = self._at(f"/{rest}", method)
        return (route, model) if route is not None and route.takes_model else None

    def _at(self, path: str, method: str) -> Route | None:
        is_get = method != "POST"
        return self._routes.get((path, is_get)) or self._routes.get((path, not is_get))


def error_form_of(found: Found, path: str) -> ErrorForm:
    """Return the form of errors about a request."""
    if found is not None:
        return found[0].error_form
    return openai_error if path.startswith(_OPENAI_PREFIX) else plain_error


async def respond(found: Found, models: Models, method: str, path: str, body: bytes) -> Response:
    """Return the response to a request. Whatever fails becomes a response, too."""
    form = error_form_of(found, path)
    try:
        if found is None:
            raise BadRequestError(f"Not Found: there is no route {path!r}.", 404)
        route, name = found
        _check_method(route, method, path)
        parsed = _parsed(route, body)
        served = None
        if route.kinds:
            # Some protocols name the model in the body.
            in_body = getattr(parsed, "model", None)
            served = models.requested(route.runs, in_path=name, in_body=in_body)
        return await route.run(parsed, served)
    except BadRequestError as error:
        return error_response(error, form)
    except Exception:
        _LOGGER.exception("A request to %s failed.", shortened(path))
        failure = BadRequestError("The request failed in the server.", 500, "Backend")
        return error_response(failure, form)


def _check_method(route: Route, method: str, path: str) -> None:
    if method not in route.methods:
        allowed = ", ".join(route.methods)
        raise BadRequestError(
            f"{path!r} answers {allowed}, got {method}.", 405, headers={"Allow": allowed}
        )


def _parsed(route: Route, body: bytes) -> Any:
    if route.body is None:
        return None
    try:
        parsed = route.body.model_validate_json(body)
        # pydantic takes the last one of two fields with the same name.
        _UNIQUE.decode(body.decode())
    except pydantic.ValidationError as error:
        raise described(error, route.body) from error
    except ValueError as error:
        raise BadRequestError(f"The body: {error}. Send it once.") from error
    return parsed


def described(error: pydantic.ValidationError, body: type[Body]) -> BadRequestError:
    """Return an error that names the first field that is wrong."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"]
        return BadRequestError(
            f"The body is not JSON: {reason}. Send JSON with `Content-Type: application/json`."
        )
    fields, field = _named(first["loc"], body)
    rest = first["loc"][len(fields) :]
    if not (rest and field is not None and _has_forms(field.annotation)):
        place = ".".join(map(str, first["loc"]))
        return BadRequestError(f"{f'`{place}`' if place else 'The body'}: {_reason(first)}.")
    place = ".".join(fields)
    # pydantic has an error for each form, and does not know which one was meant.
    if field.description is not None:
        expected = field.description[:1].lower() + field.description[1:]
        return BadRequestError(f"`{place}`: expected {expected}")
    own = [each for each in error.errors() if each["loc"][: len(fields)] == tuple(fields)]
    deepest = max(own, key=lambda each: len(each["loc"]))
    # After the name of the form come the places in it.
    if inner := deepest["loc"][len(fields) + 1 :]:
        return BadRequestError(f"`{place}.{'.'.join(map(str, inner))}`: {_reason(deepest)}.")
    reasons = dict.fromkeys(map(_reason, own))
    return BadRequestError(f"`{place}`: {', or '.join(reasons)}.")


def _named(
    location: Sequence[int | str], body: type[pydantic.BaseModel]
) -> tuple[list[str], FieldInfo | None]:
    """Return the names of fields that a location begins with, and the last of the fields."""
    names: list[str] = []
    found: FieldInfo | None = None
    kind: Any = body
    for part in location:
        if not (isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)):
            break
        found = kind.model_fields.get(str(part))
        if found is None:
            break
        names.append(str(part))
        kind = found.annotation
    return names, found


def _reason(error: ErrorDetails) -> str:
    text = error["msg"][:1].lower() + error["msg"][1:]
    return text.replace(" after validation", "")


def _has_forms(annotation: Any) -> bool:
    """Return whether values of several types are allowed, apart from `None`."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return is_union and len(set(typing.get_args(annotation)) - {types.NoneType}) > 1
