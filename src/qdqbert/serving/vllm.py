"""The routes of vLLM that score pairs of texts: `/score` and `/v1/score`."""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from qdqbert.serving.fields import (
    VLLM_REFUSED,
    NamesModel,
    Refused,
    Renamed,
    Texts,
    Truncation,
    check_tokens,
)
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.responses import Response, openai_error
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Answers, Served, Usage
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.reranking import Reranker

_TextOrTexts = str | Texts


class ScoreBody(Truncation, NamesModel):
    """Body of `/score`."""

    renamed: ClassVar[Renamed] = {
        **Truncation.renamed,
        **dict.fromkeys(("queries", "data_1"), "text_1"),
        **dict.fromkeys(("documents", "data_2", "items"), "text_2"),
        "activation": "use_activation",
    }
    refused: ClassVar[Refused] = {
        **VLLM_REFUSED,
        **dict.fromkeys(("max_tokens_per_query", "max_tokens_per_doc"), ()),
    }

    text_1: _TextOrTexts = Field(
        description="The first text of each pair. One text is paired with each of `text_2`. "
        "`queries` is another name of the field."
    )
    text_2: _TextOrTexts = Field(
        description="The second texts. `documents` is another name of the field."
    )
    truncate_prompt_tokens: int | None = Field(
        None, description="Not below the limit of the model, which is what is kept."
    )
    use_activation: bool | None = Field(
        None, description="Apply the model's activation function, as by default."
    )


class ScoreOfPair(TypedDict):
    """The score of a pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreAnswer(TypedDict):
    """Answer of `/score`."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreOfPair]
    usage: Usage


async def _score(body: ScoreBody, served: Served) -> Response:
    """Score pairs: with a reranker, or by the cosine of their embeddings."""
    check_tokens(served.model, truncate_prompt_tokens=body.truncate_prompt_tokens)
    pairs = _pairs(body)
    if isinstance(served.model, Reranker):
        options = {} if body.use_activation is not False else {"activation": "none"}
        found = await served.run("scoring_job", options, pairs, **body.cutting)
        scores = np.array([each[0] for each in found.each])
    else:
        found, scores = await _cosines(served, pairs, **body.cutting)
    return found.response(
        {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": served.name,
            "data": [
                {"index": index, "object": "score", "score": score}
                for index, score in enumerate(scores.tolist())
            ],
            "usage": found.usage,
        }
    )


async def _cosines(
    served: Served, pairs: list[tuple[str, str]], **cutting: Any
) -> tuple[Answers, NDArray[np.float32]]:
    """Return the answers of an embedder about the texts of pairs, and the cosine of each pair."""
    # Texts that are in several pairs run once.
    served.check_count(pairs)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    found = await served.run("job", {"normalize_embeddings": True}, texts, **cutting)
    vectors = dict(zip(texts, found.each, strict=True))
    return found, np.array([vectors[first] @ vectors[second] for first, second in pairs])


def _pairs(body: ScoreBody) -> list[tuple[str, str]]:
    first, second = (
        [each] if isinstance(each, str) else each for each in (body.text_1, body.text_2)
    )
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise BadRequestError(
            f"`text_1` has {len(first)} texts and `text_2` {len(second)}. Send as many, or one "
            "`text_1`."
        )
    return list(zip(first, second, strict=True))


def _route(path: str) -> Route:
    example: dict[str, Any] = {
        "text_1": "Which film is good?",
        "text_2": ["A fine film.", "A cat."],
    }
    return Route(
        path=path,
        summary="Score pairs of texts",
        tag="vLLM",
        run=_score,
        body=ScoreBody,
        answer=ScoreAnswer,
        kinds=(Reranker, Embedder),
        example=example,
        error_form=openai_error,
    )


VLLM = (_route("/score"), _route("/v1/score"))
"""The routes."""
