"""Describe routes in OpenAPI's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from qdqbert.serving.routing import MODEL_PREFIX, NAME, Route
from qdqbert.serving.service import Models


def describe(routes: Sequence[Route], models: Models, *, version: str) -> dict[str, Any]:
    """Return a description of routes in the format of OpenAPI 3.1."""
    types = {
        (route.path, part): kind
        for route in routes
        for part, kind in _types(route).items()
        if kind is not None
    }
    references, schemas = TypeAdapter.json_schemas(
        [(key, "validation", TypeAdapter(kind)) for key, kind in types.items()],
        ref_template="#/components/schemas/{model}",
    )

    def schema_of(route: Route, part: str) -> Any:
        return references[(route.path, part), "validation"]

    paths: dict[str, Any] = {}
    for route in routes:
        operation: dict[str, Any] = {
            "summary": route.summary,
            "tags": [route.tag],
            "responses": {
                "200": {
                    "description": "The answer.",
                    "content": {route.media_type: {"schema": schema_of(route, "answer")}},
                },
                "default": {
                    "description": "An error, with its reason.",
                    "content": {"application/json": {"schema": schema_of(route, "error")}},
                },
            },
        }
        if route.body is not None:
            content = {"application/json": {"schema": schema_of(route, "body")}}
            operation["requestBody"] = {"required": True, "content": content}
        method = route.methods[0].lower()
        names = models.names_of(route.runs)
        if route.path.endswith(NAME):
            operation["parameters"] = [_model(names)]
        paths[route.path] = {method: operation}
        if route.takes_model and names:
            named = {**operation, "parameters": [_model(names)]}
            paths[f"{MODEL_PREFIX}{NAME}{route.path}"] = {method: named}
    return {
        "openapi": "3.1.0",
        "info": {"title": "qdqbert", "version": version, "description": "Quantized models."},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _model(names: Sequence[str]) -> dict[str, Any]:
    """Return the description of the part of a path that names one of some models."""
    return {
        "name": "model",
        "in": "path",
        "required": True,
        "description": "Name of the model.",
        "schema": {"type": "string", "enum": list(names)},
    }


def _types(route: Route) -> dict[str, Any]:
    """Return the types of the input and the output of a route."""
    error = get_type_hints(route.error_form)["return"]
    return {"body": route.body, "answer": route.answer, "error": error}
