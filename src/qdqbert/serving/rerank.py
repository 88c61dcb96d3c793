"""The routes of Jina's, Cohere's and Voyage's services for reranking: `/v1/rerank`, `/v2/rerank`.

Clients for one of them read its part of the response, and ignore the rest.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from qdqbert.serving.fields import (
    VLLM_REFUSED,
    NamesModel,
    Refused,
    Renamed,
    Truncation,
    check_tokens,
)
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.ranking import best_first, rank_logits, scores_of
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Answers, Served, Usage
from qdqbert.tasks.multi_vector_embedding import MultiVectorEmbedder
from qdqbert.tasks.reranking import Reranker


class Document(BaseModel):
    """A document. Other fields are ignored."""

    text: str


Documents = Annotated[list[str | Document], Field(min_length=1)]
"""Documents of a request."""


_RAW = {True: {"raw_scores": False}, False: {"raw_scores": True}}


class Ranking(Truncation, NamesModel):
    """What to rank, and how, apart from the documents."""

    renamed: ClassVar[Renamed] = {
        **Truncation.renamed,
        "top_k": "top_n",
        **dict.fromkeys(("use_activation", "activation"), _RAW),
        **dict.fromkeys(("instruct", "instruction"), "prompt"),
    }
    refused: ClassVar[Refused] = {
        **{name: values for name, values in VLLM_REFUSED.items() if name != "instruction"},
        "return_embeddings": (False,),
        **dict.fromkeys(
            ("max_chunks_per_doc", "max_doc_length", "max_query_length", "max_tokens_per_query"), ()
        ),
    }

    query: str = Field(description="The query.")
    prompt_name: str | None = Field(None, description="Prompt of the model for its query.")
    prompt: str | None = Field(
        None, description="Prompt or instruction for the query, instead of a named one."
    )
    top_n: int | None = Field(
        None, ge=0, description="Number of documents to return; all by default, and for 0."
    )
    return_documents: bool | None = Field(
        None, description="Return the texts, too. By default, version 1 does."
    )
    rank_fields: list[Literal["text"]] | None = Field(
        None, description="Fields of documents to read. There is only `text`."
    )
    raw_scores: bool = Field(False, description="Return scores before the activation function.")
    max_tokens_per_doc: int | None = Field(
        None, description="Not below the limit of the model, which is what is kept."
    )
    truncate_prompt_tokens: int | None = Field(None, description="The same, as vLLM names it.")


class RankingBody(Ranking):
    """Body of `/v1/rerank` and `/v2/rerank`."""

    documents: Documents = Field(
        description="Texts to sort by how well they answer the query, or objects with `text`."
    )


class RankedDocument(TypedDict):
    """A document with its score."""

    index: int
    relevance_score: float
    document: NotRequired[Document]


class RankedText(TypedDict):
    """A document with its score, as Voyage's clients read it."""

    index: int
    relevance_score: float
    document: NotRequired[str]


class RerankMeta(TypedDict):
    """Version and numbers of tokens, for Cohere's clients."""

    api_version: dict[Literal["version"], str]
    tokens: dict[Literal["input_tokens", "output_tokens"], int]


class RerankAnswer(TypedDict):
    """Answer of `/v1/rerank` and `/v2/rerank`."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    data: list[RankedText]
    usage: Usage
    meta: RerankMeta


class RerankError(TypedDict):
    """An error."""

    message: str
    detail: str


def rerank_error(error: BadRequestError, message: str) -> RerankError:
    """Return the body about an error: Cohere's clients read `message`, and Jina's `detail`."""
    return {"message": message, "detail": message}


async def rank(
    body: Ranking, texts: Sequence[str], served: Served
) -> tuple[Answers, list[tuple[int, float]]]:
    """Return the answers of a model about texts, and the best of these with their scores.

    Returns:
        The answers, and the index and the score of each text that is asked for, the best one first.
    """
    check_tokens(
        served.model,
        max_tokens_per_doc=body.max_tokens_per_doc,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    prompts = {"prompt_name": body.prompt_name, "prompt": body.prompt}
    found, logits = await rank_logits(served, body.query, texts, prompts, **body.cutting)
    scores = scores_of(served, logits, is_raw=body.raw_scores).tolist()
    return found, [(index, scores[index]) for index in best_first(logits)[: body.top_n or None]]


async def rank_documents(
    body: Ranking, documents: Sequence[str | Document], served: Served, *, version: int
) -> Response:
    """Sort documents by how well they answer a query, the best one first."""
    texts = [each if isinstance(each, str) else each.text for each in documents]
    found, ranked = await rank(body, texts, served)
    returns_documents = body.return_documents
    if returns_documents is None:
        returns_documents = version == 1
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": texts[index]}} if returns_documents else {})
        for index, score in ranked
    ]
    return found.response(
        {
            "id": str(uuid.uuid4()),
            "object": "list",
            "model": served.name,
            "results": results,
            # Voyage's name, and its documents are texts.
            "data": [
                {**each, **({"document": texts[each["index"]]} if "document" in each else {})}
                for each in results
            ],
            "usage": found.usage,
            "meta": {
                "api_version": {"version": str(version)},
                "tokens": {"input_tokens": found.tokens, "output_tokens": 0},
            },
        }
    )


async def _rerank(body: RankingBody, served: Served, *, version: int) -> Response:
    return await rank_documents(body, body.documents, served, version=version)


RERANK = tuple(
    Route(
        path=f"/v{version}/rerank",
        summary="Sort documents by a query",
        tag=protocol,
        run=functools.partial(_rerank, version=version),
        body=RankingBody,
        answer=RerankAnswer,
        kinds=(Reranker, MultiVectorEmbedder),
        example={"query": "Which film is good?", "documents": ["A fine film.", "A cat."]},
        error_form=rerank_error,
    )
    for version, protocol in ((1, "Jina and Cohere"), (2, "Cohere"))
)
"""The routes."""
