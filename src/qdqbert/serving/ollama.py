"""Ollama's routes for embeddings, and the proposed one for entities, `/api/extract`.

Source of the last one: pull request 18535 of ollama.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from qdqbert.serving.fields import NamesModel, Refused, Texts
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Answers, Served, check_width
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.entity_extraction import THRESHOLD, EntityExtractor

Inputs = Annotated[str | Texts, Field(description="A text or several.")]


class _Body(NamesModel):
    """What all bodies have."""

    refused: ClassVar[Refused] = {"options": ({},)}

    keep_alive: Any = Field(None, description="Ignored: models stay in memory.")


class OllamaEmbeddingsBody(_Body):
    """Body of `/api/embeddings`."""

    prompt: str = Field("", description="A text. Without one, the answer is empty.")


class OllamaEmbeddingsAnswer(TypedDict):
    """Answer of `/api/embeddings`."""

    embedding: list[float]


async def _embed_one(body: OllamaEmbeddingsBody, served: Served) -> Response:
    """Embed a text. The embedding is what the model makes, of any length, as Ollama's is."""
    found = await served.run("job", {}, [body.prompt] if body.prompt else [])
    return found.response({"embedding": found.each[0] if found.each else []})


class OllamaBody(_Body):
    """Body of `/api/embed`."""

    input: Inputs
    truncate: bool | None = Field(
        None, description="Cut inputs that are too long, as by default. `false` refuses them."
    )
    dimensions: int | None = Field(None, ge=1, description="Leading dimensions to keep.")


class _Answer(TypedDict):
    """What answers have in common. Durations are in nanoseconds."""

    model: str
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaAnswer(_Answer):
    """Answer of `/api/embed`."""

    embeddings: list[list[float]]


async def _embed(body: OllamaBody, served: Served) -> Response:
    """Embed texts. Embeddings have length 1, as those of Ollama have."""
    started = time.monotonic_ns()
    texts = [body.input] if isinstance(body.input, str) else body.input
    options = {"truncate_dim": body.dimensions, "normalize_embeddings": True}
    found = await served.run("job", options, texts, truncate=body.truncate)
    check_width(found.each, body.dimensions)
    return _timed(served, found, started, {"embeddings": found.each})


class ExtractBody(_Body):
    """Body of `/api/extract`."""

    input: Inputs
    labels: list[str] = Field(description="Kinds of entities.")
    threshold: float | None = Field(
        None, ge=0, lt=1, description="Entities are more probable than this; 0.5 by default."
    )


class ExtractedEntity(TypedDict):
    """An entity: the characters from `start` to before `end`."""

    start: int
    end: int
    text: str
    label: str
    score: float


class ExtractAnswer(_Answer):
    """Answer of `/api/extract`."""

    entities: list[ExtractedEntity] | list[list[ExtractedEntity]]


async def _extract(body: ExtractBody, served: Served) -> Response:
    """Find entities. Several texts get a list of entities each."""
    started = time.monotonic_ns()
    is_one = isinstance(body.input, str)
    texts = [body.input] if isinstance(body.input, str) else body.input
    threshold = THRESHOLD if body.threshold is None else body.threshold
    found = await served.run("job", {"labels": body.labels, "threshold": threshold}, texts)
    return _timed(served, found, started, {"entities": found.each[0] if is_one else found.each})


def _timed(served: Served, found: Answers, started: int, answer: dict[str, Any]) -> Response:
    """Return the response to a request that came at a time in nanoseconds."""
    return found.response(
        {
            "model": served.name,
            **answer,
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
    Route(
        path="/api/embeddings",
        summary="Embed a text, as old clients ask for it",
        tag="Ollama",
        run=_embed_one,
        body=OllamaEmbeddingsBody,
        answer=OllamaEmbeddingsAnswer,
        kinds=(Embedder,),
        example={"prompt": "A fine film."},
    ),
    Route(
        path="/api/extract",
        summary="Find entities of kinds that are named",
        tag="Ollama",
        run=_extract,
        body=ExtractBody,
        answer=ExtractAnswer,
        kinds=(EntityExtractor,),
        example={"input": "Ada Lovelace lived in London.", "labels": ["person", "city"]},
    ),
)
"""The routes."""
