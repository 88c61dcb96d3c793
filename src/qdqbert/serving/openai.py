"""OpenAI's routes for embeddings."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from qdqbert.inference.embedding import Embedder
from qdqbert.serving.responses import Response, json_response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Models


class EmbeddingsBody(BaseModel):
    """Body of `/v1/embeddings`."""

    model_config = ConfigDict(extra="forbid")

    input: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="A text or several. Arrays of token ids are not supported."
    )
    model: str = Field(description="Name of the model.")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="`base64` is that of float32 numbers, least significant byte first."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Leading dimensions to keep, for models trained for it."
    )
    user: str | None = Field(None, description="Ignored.")


def openai_routes(models: Models) -> list[Route]:
    """Return the routes of OpenAI's API."""

    async def embeddings(body: EmbeddingsBody, model: str | None) -> Response:
        # Texts that are too long are refused, as OpenAI does.
        served = models.of_kind(Embedder, body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        options = {"truncate_dim": body.dimensions}
        found = await served.run("job", options, texts, truncate=False)
        tokens = sum(each.tokens for each in found)
        return json_response(
            {
                "object": "list",
                "data": [
                    {
                        "object": "embedding",
                        "index": index,
                        "embedding": _encoded(each.answer, body.encoding_format),
                    }
                    for index, each in enumerate(found)
                ],
                "model": served.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    async def list_models(body: None, model: str | None) -> Response:
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "qdqbert"}
            for name in models.by_name
        ]
        return json_response({"object": "list", "data": data})

    return [
        Route(
            path="/v1/embeddings",
            summary="Embed texts",
            tag="OpenAI",
            run=embeddings,
            body=EmbeddingsBody,
        ),
        Route(path="/v1/models", summary="List the models", tag="OpenAI", run=list_models),
    ]


def _encoded(embedding: np.ndarray, encoding: str) -> np.ndarray | str:
    if encoding == "float":
        return embedding
    return base64.b64encode(embedding.astype("<f4").tobytes()).decode()
