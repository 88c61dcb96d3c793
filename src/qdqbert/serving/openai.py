"""OpenAI's routes for embeddings, with the fields of services that have taken over this protocol.

These are Voyage, Jina, vLLM, infinity and NVIDIA's NIM.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, ClassVar, Literal

from pydantic import Field, StrictInt
from typing_extensions import TypedDict

from qdqbert.runtime.model import Model
from qdqbert.serving.fields import (
    VLLM_REFUSED,
    NamesModel,
    Refused,
    Renamed,
    Truncation,
    check_tokens,
    kind_options,
)
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.output_dtype import Vectors
from qdqbert.serving.responses import Response, json_response, openai_error
from qdqbert.serving.routing import NAME, Route
from qdqbert.serving.service import Models, Served, Usage, check_width
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.prompts import TokenIds

_route = functools.partial(Route, tag="OpenAI", error_form=openai_error)


class EmbeddingsBody(Vectors, Truncation, NamesModel):
    """Body of `/v1/embeddings`."""

    renamed: ClassVar[Renamed] = {
        **Vectors.renamed,
        **Truncation.renamed,
        "output_dimension": "dimensions",
        "truncate": {
            "NONE": {"truncate": False},
            "START": {"truncate": True, "truncation_direction": "left"},
            "END": {"truncate": True, "truncation_direction": "right"},
        },
        **dict.fromkeys(("use_activation", "normalize"), "normalized"),
    }
    refused: ClassVar[Refused] = {
        **VLLM_REFUSED,
        **dict.fromkeys(("late_chunking", "return_multivector"), (False,)),
        **dict.fromkeys(("messages", "images"), ()),
        "add_special_tokens": (True,),
        "modality": ("text",),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
    }

    input: str | list[str] | list[StrictInt] | list[list[StrictInt]] = Field(
        description="A text or several; or token ids of the model's own tokenizer, with its "
        "special tokens."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Leading dimensions to keep, for models trained for it."
    )
    prompt_name: str | None = Field(
        None, description="Prompt of the model to put before texts. Its default one by default."
    )
    input_type: str | None = Field(
        None,
        description="Kind of the texts, which has a prompt of the model: `query` or `document` as "
        "in Voyage's API, or `search_query`, `passage` and others.",
    )
    task: str | None = Field(
        None,
        description="Adapter of the model that runs the inputs, and its prompt: `retrieval.query` "
        "of jina-embeddings-v3. The same as `input_type` if the model has no adapters.",
    )
    truncate: bool | Literal["NONE", "START", "END"] | None = Field(  # type: ignore[assignment]
        None,
        description="Cut inputs that are too long, as by default; `START` cuts off their start. "
        "`false` and `NONE` refuse them.",
    )
    normalized: bool | None = Field(
        None, description="Scale embeddings to length 1. By default as the model does."
    )
    truncate_prompt_tokens: int | None = Field(
        None, description="Not below the limit of the model, which is what is kept."
    )
    user: Any = Field(None, description="Ignored.")


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
    check_tokens(served.model, truncate_prompt_tokens=body.truncate_prompt_tokens)
    if body.normalized is False and await asyncio.to_thread(getattr, served.model, "have_length_1"):
        raise BadRequestError(
            "`normalized` is false, but the model itself scales embeddings to length 1. Leave it "
            "out."
        )
    kind = kind_options(
        served.model, prompt_name=body.prompt_name, input_type=body.input_type, task=body.task
    )
    # The length of vectors stays 1, if it is.
    options = {
        "truncate_dim": body.dimensions,
        "normalize_embeddings": bool(body.normalized),
        "keep_length": True,
        "output_dtype": body.kind,
        **kind,
    }
    found = await served.run("job", options, _inputs(body.input), **body.cutting)
    check_width(found.each, body.dimensions, per_value=body.dimensions_per_value)
    return found.response(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": each}
                for index, each in enumerate(body.shown(found.each))
            ],
            "model": served.name,
            "usage": found.usage,
        }
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
        *(
            _route(
                path=path,
                summary="Embed texts",
                run=_embeddings,
                body=EmbeddingsBody,
                answer=EmbeddingsAnswer,
                kinds=(Embedder,),
                example={"input": ["A fine film."]},
            )
            # The second one is infinity's own.
            for path in ("/v1/embeddings", "/embeddings")
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
    """Return the inputs of a request: texts, or token ids."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequestError("`input` is empty. Send at least one text.")
    if isinstance(given[0], int):
        return [TokenIds(given)]
    return [each if isinstance(each, str) else TokenIds(each) for each in given]


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "qdqbert"}
