"""OpenAI's routes for embeddings.

Fields that this server does not know, such as `input_type`, are ignored, as other servers of this
protocol do: clients send fields of the service that they were written for.
"""

from __future__ import annotations

import base64
import functools
from typing import Any, Literal

import numpy as np
from pydantic import Field, StrictInt
from typing_extensions import TypedDict

from qdqbert.runtime.model import Model
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.output_dtype import Vectors
from qdqbert.serving.responses import Response, json_response, openai_error
from qdqbert.serving.routing import NAME, Route
from qdqbert.serving.service import Models, Served, check_width, count_truncated
from qdqbert.tasks.feature_extraction import Embedder
from qdqbert.tasks.prompts import TokenIds

_route = functools.partial(Route, tag="OpenAI", error_form=openai_error)


class EmbeddingsBody(Vectors):
    """Body of `/v1/embeddings`."""

    input: str | list[str] | list[StrictInt] | list[list[StrictInt]] = Field(
        description="A text or several; or token ids of the model's own tokenizer, with its "
        "special tokens."
    )
    model: str | None = Field(
        None, description="Name of the model. Any name will do if the server has a single model."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None,
        description="`float` by default. `base64` encodes the bytes of the values of "
        "`output_dtype`; float32 has its least significant byte first.",
    )
    dimensions: int | None = Field(
        None, ge=1, description="Leading dimensions to keep, for models trained for it."
    )
    task: str | None = Field(
        None,
        description="Adapter of the model that runs the inputs, and its prompt: `retrieval.query` "
        "of jina-embeddings-v3. Ignored if the model has no adapters.",
    )
    truncate: bool | None = Field(
        None,
        description="Cut inputs that are too long, as by default. `false` refuses them.",
    )
    user: Any = Field(None, description="Ignored.")


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The embedding of an input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(TypedDict):
    """Answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelAnswer(TypedDict):
    """Answer of `/v1/models/NAME`."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(TypedDict):
    """Answer of `/v1/models`."""

    object: Literal["list"]
    data: list[ModelAnswer]


async def _embeddings(body: EmbeddingsBody, served: Served) -> Response:
    # The length of vectors stays 1, if it is.
    options = {
        "truncate_dim": body.dimensions,
        "keep_length": True,
        "output_dtype": body.kind,
        "task": body.task if served.model.adapters else None,
    }
    found = await served.run("job", options, _inputs(body.input), truncate=body.truncate)
    vectors = [each.answer for each in found]
    check_width(vectors, body.dimensions, per_value=body.dimensions_per_value)
    tokens = sum(each.tokens for each in found)
    return json_response(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _encoded(each, body.encoding_format),
                }
                for index, each in enumerate(vectors)
            ],
            "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        },
        truncated=count_truncated(found),
    )


def openai_routes(models: Models) -> list[Route]:
    """Return the routes of OpenAI's API."""

    async def list_models(body: None, served: None) -> Response:
        return json_response(
            {"object": "list", "data": [_described(each) for each in models.by_name]}
        )

    async def show_model(body: None, served: Served) -> Response:
        return json_response(_described(served.name))

    return [
        _route(
            path="/v1/embeddings",
            summary="Embed texts",
            run=_embeddings,
            body=EmbeddingsBody,
            answer=EmbeddingsAnswer,
            kinds=(Embedder,),
            example={"input": ["A fine film."]},
        ),
        _route(path="/v1/models", summary="List the models", run=list_models, answer=ModelsAnswer),
        _route(
            path=f"/v1/models/{NAME}",
            summary="Describe a model",
            run=show_model,
            answer=ModelAnswer,
            kinds=(Model,),
        ),
    ]


def _inputs(given: str | list[Any]) -> list[str | TokenIds]:
    """Return the inputs of a request: texts, or token ids.

    Raises:
        BadRequestError: There is no input.
    """
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequestError(422, "`input` is empty. Send at least one text.", "Validation")
    if isinstance(given[0], int):
        return [TokenIds(given)]
    return [each if isinstance(each, str) else TokenIds(each) for each in given]


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "qdqbert"}


def _encoded(embedding: np.ndarray, encoding: str | None) -> np.ndarray | str:
    if encoding != "base64":
        return embedding
    values = embedding.astype(embedding.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(values.tobytes()).decode()
