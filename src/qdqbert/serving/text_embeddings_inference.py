"""The routes of Hugging Face's text-embeddings-inference: `/embed`, `/rerank`, `/predict`.

As there, inputs that are too long are cut unless a request says otherwise, and fields that are not
known are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from qdqbert.serving.responses import Response, json_response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Models, check_width, count_truncated
from qdqbert.tasks.feature_extraction import Embedder
from qdqbert.tasks.logits import apply
from qdqbert.tasks.reranking import Reranker
from qdqbert.tasks.text_classification import TextClassifier

Texts = Annotated[list[str], Field(min_length=1)]
TextOrPair = Annotated[list[str], Field(min_length=1, max_length=2)]
_TRUNCATE = "Cut inputs that are too long, as by default. `false` refuses them."
_DIRECTION = "The end of inputs that is cut off. That of the model's tokenizer by default."
Direction = Literal["Left", "Right", "left", "right"]


class EmbedBody(BaseModel):
    """Body of `/embed`."""

    inputs: str | Texts = Field(description="A text or several.")
    normalize: bool | None = Field(None, description="Scale embeddings to length 1, as by default.")
    truncate: bool | None = Field(None, description=_TRUNCATE)
    truncation_direction: Direction | None = Field(None, description=_DIRECTION)
    prompt_name: str | None = Field(None, description="Prompt of the model to put before texts.")
    dimensions: int | None = Field(None, ge=1, description="Leading dimensions to keep.")


class RerankBody(BaseModel):
    """Body of `/rerank`."""

    query: str = Field(description="The query.")
    texts: Texts = Field(description="Texts to sort by how well they answer the query.")
    raw_scores: bool = Field(False, description="Return scores before the activation function.")
    return_text: bool = Field(False, description="Return the texts, too.")
    truncate: bool | None = Field(None, description=_TRUNCATE)
    truncation_direction: Direction | None = Field(None, description=_DIRECTION)


class PredictBody(BaseModel):
    """Body of `/predict`."""

    inputs: str | TextOrPair | Annotated[list[TextOrPair], Field(min_length=1)] = Field(
        description="A text, a pair of texts, or a list of lists of one text or a pair."
    )
    raw_scores: bool = Field(False, description="Return scores before the activation function.")
    truncate: bool | None = Field(None, description=_TRUNCATE)
    truncation_direction: Direction | None = Field(None, description=_DIRECTION)


def text_embeddings_inference_routes(models: Models) -> list[Route]:
    """Return the routes, which may have the name of a model in their path."""

    async def embed(body: EmbedBody, model: str | None) -> Response:
        """Embed texts. The result has a list of numbers for each text."""
        served = models.of_kind(Embedder, model)
        options = {
            "normalize_embeddings": body.normalize is not False,
            "prompt_name": body.prompt_name,
            "truncate_dim": body.dimensions,
        }
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        found = await served.run("job", options, texts, **_cutting(body))
        vectors = [each.answer for each in found]
        check_width(vectors, body.dimensions)
        return json_response(vectors, truncated=count_truncated(found))

    async def rerank(body: RerankBody, model: str | None) -> Response:
        """Sort texts by how well they answer a query, the best one first."""
        served = models.of_kind(Reranker, model)
        # Scores of large logits round to the same number.
        options = {"activation": "none"}
        pairs = [(body.query, text) for text in body.texts]
        found = await served.run("scoring_job", options, pairs, **_cutting(body))
        ranked = _ranked(body, np.array([each.answer[0] for each in found]))
        return json_response(ranked, truncated=count_truncated(found))

    async def predict(body: PredictBody, model: str | None) -> Response:
        """Classify texts. The result has all classes, the best one first."""
        served = models.of_kind(TextClassifier, model)
        options: dict[str, Any] = {"top_k": None}
        if body.raw_scores:
            options["function_to_apply"] = "none"
        is_one = isinstance(body.inputs, str) or isinstance(body.inputs[0], str)
        items: list[Any] = [body.inputs] if is_one else list(body.inputs)
        # Jobs take texts and pairs.
        texts = [each[0] if len(each) == 1 else each for each in items]
        found = await served.run("job", options, texts, **_cutting(body))
        answers = [each.answer for each in found]
        return json_response(answers[0] if is_one else answers, truncated=count_truncated(found))

    named: dict[str, tuple[str, Any, type[BaseModel]]] = {
        "/embed": ("Embed texts", embed, EmbedBody),
        "/rerank": ("Sort texts by a query", rerank, RerankBody),
        "/predict": ("Classify texts", predict, PredictBody),
    }
    return [
        Route(
            path=path,
            summary=summary,
            tag="text-embeddings-inference",
            run=run,
            body=body,
            takes_model=True,
        )
        for path, (summary, run, body) in named.items()
    ]


def _ranked(body: RerankBody, logits: NDArray[np.float32]) -> list[dict[str, Any]]:
    """Return the texts of a request with their scores, the best one first."""
    scores = apply("none" if body.raw_scores else "sigmoid", logits).tolist()
    return [
        {"index": index, "score": scores[index]}
        | ({"text": body.texts[index]} if body.return_text else {})
        for index in np.argsort(-logits, kind="stable").tolist()
    ]


def _cutting(body: EmbedBody | RerankBody | PredictBody) -> dict[str, Any]:
    """Return how inputs that are too long are treated; see `Served.run`."""
    direction = body.truncation_direction
    return {"truncate": body.truncate, "side": direction and direction.lower()}
