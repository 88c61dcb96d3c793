"""Ollama's route for embeddings: `/api/embed`."""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from qdqbert.serving.fields import NamesModel, Refused
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served, check_width
from qdqbert.tasks.embedder import Embedder


class OllamaBody(NamesModel):
    """Body of `/api/embed`."""

    refused: ClassVar[Refused] = {"options": ({},)}

    input: str | Annotated[list[str], Field(min_length=1)] = Field(description="A text or several.")
    truncate: bool | None = Field(
        None, description="Cut inputs that are too long, as by default. `false` refuses them."
    )
    dimensions: int | None = Field(None, ge=1, description="Leading dimensions to keep.")
    keep_alive: Any = Field(None, description="Ignored: models stay in memory.")


class OllamaAnswer(TypedDict):
    """Answer of `/api/embed`. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


async def _embed(body: OllamaBody, served: Served) -> Response:
    """Embed texts. Embeddings have length 1, as those of Ollama have."""
    started = time.monotonic_ns()
    texts = [body.input] if isinstance(body.input, str) else body.input
    options = {"truncate_dim": body.dimensions, "normalize_embeddings": True}
    found = await served.run("job", options, texts, truncate=body.truncate)
    check_width(found.each, body.dimensions)
    return found.response(
        {
            "model": served.name,
            "embeddings": found.each,
            "total_duration": time.monotonic_ns() - started,
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
        }
    )


OLLAMA = (
    Route(
        path="/api/embed",
        summary="Embed texts",
        tag="Ollama",
        run=_embed,
        body=OllamaBody,
        answer=OllamaAnswer,
        kinds=(Embedder,),
        example={"input": ["A fine film."]},
    ),
)
"""The routes."""
