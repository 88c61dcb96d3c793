"""The routes of Hugging Face's text-embeddings-inference.

As there, inputs that are too long are cut unless a request says otherwise.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, ClassVar, NotRequired

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from typing_extensions import TypedDict

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.cross_encoder import Activation
from qdqbert.encoders.checkpoint.model_settings import choose_prompt
from qdqbert.runtime.model import Model
from qdqbert.runtime.tokens import Token
from qdqbert.serving.fields import Body, Refused, Renamed, Texts, Truncation, in_parameters
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.output_dtype import Vectors
from qdqbert.serving.rerank import Documents, Ranking, RerankAnswer, rank, rank_documents
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served, check_width
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.multi_vector_embedding import MultiVectorEmbedder
from qdqbert.tasks.prompts import HasPrompts
from qdqbert.tasks.reranking import Reranker
from qdqbert.tasks.sparse_embedding import SparseEmbedder
from qdqbert.tasks.text_classification import TextClassifier

TextOrPair = Annotated[list[str], Field(min_length=1, max_length=2)]
Ids = list[StrictInt]


class _Prompted(Truncation):
    refused: ClassVar[Refused] = {
        "parameters": ({},),
        **dict.fromkeys(("input_type", "prompt"), ()),
    }

    prompt_name: str | None = Field(None, description="Prompt of the model to put before texts.")


class EmbedBody(_Prompted, Vectors):
    """Body of `/embed`."""

    renamed: ClassVar[Renamed] = {**Vectors.renamed, **Truncation.renamed}

    inputs: str | Texts = Field(description="A text or several.")
    normalize: bool | None = Field(None, description="Scale embeddings to length 1, as by default.")
    dimensions: int | None = Field(None, ge=1, description="Leading dimensions to keep.")


class _ManyValuesBody(_Prompted):
    refused: ClassVar[Refused] = {
        **_Prompted.refused,
        **dict.fromkeys(("dimensions", "normalize"), ()),
        **dict.fromkeys(("encoding_format", "output_dtype"), ("float",)),
    }

    inputs: str | Texts = Field(description="A text or several.")


class EmbedAllBody(_ManyValuesBody):
    """Body of `/embed_all`."""


class EmbedSparseBody(_ManyValuesBody):
    """Body of `/embed_sparse`."""


class SimilarityInputs(BaseModel):
    """Texts to compare."""

    source_sentence: str = Field(description="The text that the others are compared with.")
    sentences: Texts = Field(description="The other texts.")


class SimilarityParameters(_Prompted):
    """Parameters of `/similarity`."""


class SimilarityBody(Body):
    """Body of `/similarity`."""

    renamed: ClassVar[Renamed] = in_parameters(SimilarityParameters)

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


class RerankBody(Ranking):
    """Body of `/rerank`."""

    renamed: ClassVar[Renamed] = {**Ranking.renamed, "return_text": "return_documents"}

    texts: Texts | None = Field(
        None, description="Texts to sort by how well they answer the query."
    )
    documents: Documents | None = Field(
        None,
        description="The texts as infinity and Cohere name them, instead of `texts`. The answer is "
        "then that of `/v1/rerank`.",
    )
    # It has this name in the description of the routes only.
    return_text: bool = Field(False, description="Return the texts, too.")


class PredictParameters(Body):
    """Parameters of `/predict`."""

    model_config = ConfigDict(extra="forbid")

    top_k: int | None = Field(None, ge=1)
    function_to_apply: Activation | None = None


class PredictBody(Truncation):
    """Body of `/predict`."""

    renamed: ClassVar[Renamed] = {**Truncation.renamed, **in_parameters(PredictParameters)}
    refused: ClassVar[Refused] = dict.fromkeys(
        ("candidate_labels", "hypothesis_template", "multi_label"), ()
    )

    inputs: str | TextOrPair | Annotated[list[TextOrPair], Field(min_length=1)] = Field(
        description="A text, a pair of texts, or a list of lists of one text or a pair."
    )
    raw_scores: bool | None = Field(
        None, description="Return scores before the activation function."
    )
    parameters: PredictParameters | None = Field(
        None, description="`top_k` and `function_to_apply`, as in Hugging Face's inference API."
    )


class TokenizeBody(Body):
    """Body of `/tokenize`."""

    inputs: str | Texts = Field(description="A text or several.")
    add_special_tokens: bool | None = Field(None, description="Add them, as by default.")
    prompt_name: str | None = Field(
        None, description="Prompt of the model to put before texts; none by default."
    )


class DecodeBody(Body):
    """Body of `/decode`."""

    ids: Ids | Annotated[list[Ids], Field(min_length=1)] = Field(
        description="The token ids of a text, or of several."
    )
    skip_special_tokens: bool | None = Field(None, description="Leave them out, as by default.")


class RankedText(TypedDict):
    """A text with its score."""

    index: int
    score: float
    text: NotRequired[str]


class WeightedWord(TypedDict):
    """A word of the vocabulary with its weight."""

    index: int
    value: float


class ScoredClass(TypedDict):
    """A class with its score."""

    label: str
    score: float


async def _embed(body: EmbedBody, served: Served) -> Response:
    """Embed texts. The result has a list of numbers for each text."""
    options = {
        "normalize_embeddings": body.normalize is not False,
        "prompt_name": body.prompt_name,
        "truncate_dim": body.dimensions,
        "output_dtype": body.kind,
    }
    found = await served.run("job", options, _listed(body.inputs), **body.cutting)
    check_width(found.each, body.dimensions, per_value=body.dimensions_per_value)
    return found.response(body.shown(found.each))


async def _embed_sparse(body: EmbedSparseBody, served: Served) -> Response:
    """Embed texts. The result has a list of words with their weights for each text."""
    options: dict[str, Any] = {"prompt_name": body.prompt_name}
    is_one_of_several = isinstance(served.model, Embedder)
    if is_one_of_several:
        options["vectors"] = ("sparse",)
    found = await served.run("job", options, _listed(body.inputs), **body.cutting)
    vectors = [each.sparse for each in found.each] if is_one_of_several else found.each
    rows = [
        [
            {"index": index, "value": value}
            for index, value in zip(each.indices.tolist(), each.values, strict=True)
        ]
        for each in vectors
    ]
    return found.response(rows)


async def _embed_all(body: EmbedAllBody, served: Served) -> Response:
    """Return the states of all tokens of texts, or their vectors, if the model makes some."""
    texts = _listed(body.inputs)
    served.check_states(texts)
    method, options = "job", dict[str, Any](prompt_name=body.prompt_name)
    model = served.model
    if isinstance(model, MultiVectorEmbedder):
        method = "job_of_prompt"
    elif isinstance(model, Embedder) and "colbert" in model.vector_kinds:
        options["vectors"] = ("colbert",)
    else:
        options["output_value"] = "token_embeddings"
    found = await served.run(method, options, texts, **body.cutting)
    vectors = [each.colbert for each in found.each] if "vectors" in options else found.each
    return found.response(vectors)


async def _similarity(body: SimilarityBody, served: Served) -> Response:
    """Return the cosine of a text and of each other text."""
    parameters = body.parameters or SimilarityParameters.model_validate({})
    options = {"normalize_embeddings": True, "prompt_name": parameters.prompt_name}
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    found = await served.run("job", options, texts, **parameters.cutting)
    source, *others = found.each
    return found.response(np.stack(others) @ source)


async def _rerank(body: RerankBody, served: Served) -> Response:
    """Sort texts by how well they answer a query, the best one first."""
    if (body.texts is None) == (body.documents is None):
        raise BadRequestError("Send `texts`, or `documents` instead.")
    if body.documents is not None:
        return await rank_documents(body, body.documents, served, version=1)
    assert body.texts is not None
    found, ranked = await rank(body, body.texts, served)
    answers = [
        {"index": index, "score": score}
        | ({"text": body.texts[index]} if body.return_documents else {})
        for index, score in ranked
    ]
    return found.response(answers)


async def _predict(body: PredictBody, served: Served) -> Response:
    """Classify texts. The result has all classes, the best one first."""
    options = (body.parameters or PredictParameters.model_validate({})).model_dump()
    function = options["function_to_apply"]
    if None not in (body.raw_scores, function) and body.raw_scores != (function == "none"):
        raise BadRequestError(
            "`raw_scores` and `function_to_apply` contradict each other; leave one of them out."
        )
    if body.raw_scores:
        options["function_to_apply"] = "none"
    is_one = isinstance(body.inputs, str) or isinstance(body.inputs[0], str)
    items: list[Any] = [body.inputs] if is_one else list(body.inputs)
    # Jobs take texts and pairs.
    texts = [each[0] if len(each) == 1 else each for each in items]
    found = await served.run("job", options, texts, **body.cutting)
    return found.response(found.each[0] if is_one else found.each)


async def _tokenize(body: TokenizeBody, served: Served) -> Response:
    """Return the tokens of texts."""
    prompt = _prompt(served.model, body.prompt_name)
    texts = [prompt + each for each in _listed(body.inputs)]
    served.check_read(texts)
    options = {"add_special_tokens": body.add_special_tokens is not False}
    found = await served.run("tokenizing_job", options, texts)
    return found.response(found.each)


async def _decode(body: DecodeBody, served: Served) -> Response:
    """Return the texts of token ids."""
    is_one = not body.ids or isinstance(body.ids[0], int)
    items: list[Any] = [body.ids] if is_one else list(body.ids)
    served.check_read(items)
    options = {"skip_special_tokens": body.skip_special_tokens is not False}
    found = await served.run("decoding_job", options, items)
    return found.response(found.each)


def _listed(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def _prompt(model: Model, name: str | None) -> str:
    """Return the prompt of a name; empty for none."""
    prompts = model.prompts if isinstance(model, HasPrompts) else {}
    try:
        return choose_prompt(prompts, None, name=name, text=None)
    except UserInputError as error:
        raise BadRequestError(str(error)) from error


_route = functools.partial(Route, tag="text-embeddings-inference")
_TEXT = "A fine film."
TEXT_EMBEDDINGS_INFERENCE = (
    _route(
        path="/embed",
        summary="Embed texts",
        run=_embed,
        body=EmbedBody,
        answer=list[list[float]] | list[str],
        kinds=(Embedder,),
        example={"inputs": [_TEXT]},
    ),
    _route(
        path="/embed_all",
        summary="Return the states of all tokens",
        run=_embed_all,
        body=EmbedAllBody,
        answer=list[list[list[float]]],
        kinds=(Embedder, MultiVectorEmbedder),
        example={"inputs": [_TEXT]},
    ),
    _route(
        path="/embed_sparse",
        summary="Embed texts as weights of words",
        run=_embed_sparse,
        body=EmbedSparseBody,
        answer=list[list[WeightedWord]],
        kinds=(SparseEmbedder, Embedder),
        needs="sparse",
        example={"inputs": [_TEXT]},
    ),
    _route(
        path="/similarity",
        summary="Compare a text with others",
        run=_similarity,
        body=SimilarityBody,
        answer=list[float],
        kinds=(Embedder,),
        example={"inputs": {"source_sentence": _TEXT, "sentences": ["A good movie.", "A cat."]}},
    ),
    _route(
        path="/rerank",
        summary="Sort texts by a query",
        run=_rerank,
        body=RerankBody,
        answer=list[RankedText] | RerankAnswer,
        kinds=(Reranker, MultiVectorEmbedder),
        example={"query": "Which film is good?", "texts": [_TEXT, "A cat."]},
    ),
    _route(
        path="/predict",
        summary="Classify texts",
        run=_predict,
        body=PredictBody,
        answer=list[ScoredClass] | list[list[ScoredClass]],
        kinds=(TextClassifier,),
        example={"inputs": _TEXT},
    ),
)
"""The routes that run models of a kind."""

TOKENIZING = (
    _route(
        path="/tokenize",
        summary="Return the tokens of texts",
        run=_tokenize,
        body=TokenizeBody,
        answer=list[list[Token]],
        kinds=(Model,),
        example={"inputs": _TEXT},
    ),
    _route(
        path="/decode",
        summary="Return the text of token ids",
        run=_decode,
        body=DecodeBody,
        answer=list[str],
        kinds=(Model,),
        example={"ids": [1, 2, 3]},
    ),
)
"""The routes that use the tokenizer of any model."""
