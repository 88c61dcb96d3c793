"""The routes of Jina's and Cohere's services for reranking: `/v1/rerank` and `/v2/rerank`.

Clients for one of them read its part of the response, and ignore the rest. Fields that are not
known are ignored.
"""

from __future__ import annotations

import functools
import uuid
from typing import Annotated, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.openai import Usage
from qdqbert.serving.ranking import best_first, rank_logits, scores_of
from qdqbert.serving.responses import Response, json_response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served, count_truncated
from qdqbert.tasks.multi_vector_embedding import MultiVectorEmbedder
from qdqbert.tasks.reranking import Reranker


class Document(BaseModel):
    """A document. Other fields are ignored."""

    text: str


class DocumentsBody(BaseModel):
    """Body of `/v1/rerank` and `/v2/rerank`."""

    query: str = Field(description="The query.")
    documents: Annotated[list[str | Document], Field(min_length=1)] = Field(
        description="Texts to sort by how well they answer the query, or objects with `text`."
    )
    model: str | None = Field(
        None, description="Name of the model. Any name will do if the server has a single model."
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
    truncate: bool | None = Field(
        None, description="Cut documents that are too long, as by default. `false` refuses them."
    )


class RankedDocument(TypedDict):
    """A document with its score."""

    index: int
    relevance_score: float
    document: NotRequired[Document]


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
    usage: Usage
    meta: RerankMeta


class RerankError(TypedDict):
    """An error."""

    message: str
    detail: str


def _error(error: BadRequestError, message: str) -> RerankError:
    """Return the body about an error: Cohere's clients read `message`, and Jina's `detail`."""
    return {"message": message, "detail": message}


async def _rank(body: DocumentsBody, served: Served, *, version: int) -> Response:
    """Sort documents by how well they answer a query, the best one first."""
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    found, logits = await rank_logits(served, body.query, texts, truncate=body.truncate)
    scores = scores_of(served, logits).tolist()
    returns_documents = body.return_documents
    if returns_documents is None:
        returns_documents = version == 1
    tokens = sum(each.tokens for each in found)
    return json_response(
        {
            "id": str(uuid.uuid4()),
            "object": "list",
            "model": served.name,
            "results": [
                {"index": index, "relevance_score": scores[index]}
                | ({"document": {"text": texts[index]}} if returns_documents else {})
                for index in best_first(logits)[: body.top_n or None]
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {
                "api_version": {"version": str(version)},
                "tokens": {"input_tokens": tokens, "output_tokens": 0},
            },
        },
        truncated=count_truncated(found),
    )


RERANK = tuple(
    Route(
        path=f"/v{version}/rerank",
        summary="Sort documents by a query",
        tag=protocol,
        run=functools.partial(_rank, version=version),
        body=DocumentsBody,
        answer=RerankAnswer,
        kinds=(Reranker, MultiVectorEmbedder),
        example={"query": "Which film is good?", "documents": ["A fine film.", "A cat."]},
        error_form=_error,
    )
    for version, protocol in ((1, "Jina and Cohere"), (2, "Cohere"))
)
"""The routes."""
