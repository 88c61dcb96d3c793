"""Cohere's routes for embeddings: `/v1/embed` and `/v2/embed`."""

from __future__ import annotations

import functools
import uuid
from typing import Any, ClassVar, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from qdqbert.common.choices import OutputDtype
from qdqbert.serving.fields import NamesModel, Refused, Texts, kind_options
from qdqbert.serving.output_dtype import base64_of
from qdqbert.serving.rerank import rerank_error
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served, check_width
from qdqbert.tasks.embedder import Embedder

_EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class CohereBody(NamesModel):
    """Body of `/v1/embed` and `/v2/embed`."""

    refused: ClassVar[Refused] = {
        **dict.fromkeys(("images", "inputs"), ([],)),
        "max_tokens": (),
    }

    texts: Texts = Field(description="Texts to embed.")
    input_type: str | None = Field(
        None, description="Kind of the texts, which has a prompt of the model: `search_query`."
    )
    embedding_types: list[_EmbeddingType] | None = Field(
        None, description="Kinds of vectors to return; `float` by default."
    )
    output_dimension: int | None = Field(None, ge=1, description="Leading dimensions to keep.")
    truncate: Literal["NONE", "START", "END"] | None = Field(
        None, description="The end of texts that is cut off if they are too long, `END` by default."
    )


class CohereMeta(TypedDict):
    """Version and numbers of tokens."""

    api_version: dict[Literal["version"], str]
    billed_units: dict[Literal["input_tokens"], int]


class CohereAnswer(TypedDict):
    """Answer of `/v1/embed` and `/v2/embed`."""

    id: str
    texts: list[str]
    embeddings: Any
    meta: CohereMeta
    response_type: NotRequired[str]


async def _embed(body: CohereBody, served: Served, *, version: int) -> Response:
    """Embed texts, in each kind of vectors that is asked for."""
    options = {
        "truncate_dim": body.output_dimension,
        "keep_length": True,
        **kind_options(served.model, prompt_name=None, input_type=body.input_type, task=None),
    }
    kinds = body.embedding_types or ["float"]
    found: dict[str, Any] = {}
    for kind in dict.fromkeys(kinds):
        dtype: OutputDtype = "float32" if kind == "float" or kind == "base64" else kind
        answered = await served.run(
            "job",
            {**options, "output_dtype": dtype},
            body.texts,
            truncate=body.truncate != "NONE",
            side="left" if body.truncate == "START" else None,
        )
        vectors = answered.each
        per_value = 8 if dtype in ("binary", "ubinary") else 1
        check_width(vectors, body.output_dimension, per_value=per_value)
        found[kind] = [base64_of(each) for each in vectors] if kind == "base64" else vectors
    is_plain = version == 1 and body.embedding_types is None
    return answered.response(
        {
            "id": str(uuid.uuid4()),
            "texts": body.texts,
            "embeddings": found["float"] if is_plain else found,
            "meta": {
                "api_version": {"version": str(version)},
                "billed_units": {"input_tokens": answered.tokens},
            },
            "response_type": "embeddings_floats" if is_plain else "embeddings_by_type",
        }
    )


COHERE = tuple(
    Route(
        path=f"/v{version}/embed",
        summary="Embed texts",
        tag="Cohere",
        run=functools.partial(_embed, version=version),
        body=CohereBody,
        answer=CohereAnswer,
        kinds=(Embedder,),
        example={"texts": ["A fine film."], "input_type": "search_document"},
        error_form=rerank_error,
    )
    for version in (1, 2)
)
"""The routes."""
