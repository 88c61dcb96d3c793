"""Describe routes in OpenAPI's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from qdqbert.serving.routing import MODEL_PREFIX, NAME, Route

_MODEL = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "Name of the model.",
    "schema": {"type": "string"},
}


def describe(routes: Sequence[Route], *, version: str) -> dict[str, Any]:
    """Return a description of routes in the format of OpenAPI 3.1."""
    bodies = [(route.body, "validation") for route in routes if route.body is not None]
    references, schemas = models_json_schema(
        bodies,  # type: ignore[arg-type]
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {}
    for route in routes:
        operation: dict[str, Any] = {
            "summary": route.summary,
            "tags": [route.tag],
            "responses": {
                "200": {"description": "The answer."},
                "default": {"description": "An error, with its reason."},
            },
        }
        if route.body is not None:
            schema = references[route.body, "validation"]
            content = {"application/json": {"schema": schema}}
            operation["requestBody"] = {"required": True, "content": content}
        method = route.methods[0].lower()
        if route.path.endswith(NAME):
            operation["parameters"] = [_MODEL]
        paths[route.path] = {method: operation}
        if route.takes_model:
            named = {**operation, "parameters": [_MODEL]}
            paths[f"{MODEL_PREFIX}{NAME}{route.path}"] = {method: named}
    return {
        "openapi": "3.1.0",
        "info": {"title": "qdqbert", "version": version, "description": "Quantized models."},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }
