"""One route for each task, with the bodies and answers of Hugging Face's inference API.

    POST /token-classification {"inputs": "...", "parameters": {"aggregation_strategy": "first"}}

Answers are those of transformers' pipelines. A list of inputs gets a list of answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from qdqbert.choices import AggregationStrategy
from qdqbert.inference.classification import TextClassifier
from qdqbert.inference.fill_mask import MaskFiller
from qdqbert.inference.multiple_choice import ChoiceSelector
from qdqbert.inference.next_sentence_prediction import NextSentencePredictor
from qdqbert.inference.question_answering import QuestionAnswerer
from qdqbert.inference.token_classification import TokenClassifier
from qdqbert.runtime.model import Model
from qdqbert.serving.responses import Response, json_response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Models, count_truncated

Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Pair(_Strict):
    """Two texts."""

    text: str
    text_pair: str | None = None


class Question(_Strict):
    """A question about a text."""

    question: str
    context: str


class Choices(_Strict):
    """Endings, of which one fits."""

    context: str
    prompt: str | None = None
    choices: Annotated[list[str], Field(min_length=2)]


class ClassificationParameters(_Strict):
    """Parameters of text classification."""

    top_k: Count | None = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None


class TokenParameters(_Strict):
    """Parameters of token classification."""

    aggregation_strategy: AggregationStrategy = "simple"


class QuestionParameters(_Strict):
    """Parameters of question answering."""

    top_k: Count = 1
    doc_stride: Annotated[int, Field(ge=0)] | None = None
    max_answer_len: Count | None = None


class FillParameters(_Strict):
    """Parameters of fill-mask."""

    top_k: Count = 5
    targets: list[str] | None = None


class NoParameters(_Strict):
    """No parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRoute:
    """A task of the server.

    Attributes:
        task: Name of the task, which is the path.
        kind: Class of the models.
        input: Type of an input.
        parameters: The parameters, which become arguments of the model's `job`.
        keeps_none: Parameters whose `None` is passed on.
        each: Returns the answer to an input, from that of the job and the parameters.
        wraps_one: Whether the answer to a request with one input is a list with that answer, as in
            Hugging Face's API.
    """

    task: str
    kind: type[Model]
    input: Any
    parameters: type[BaseModel]
    keeps_none: tuple[str, ...] = ()
    each: Callable[[Any, Any], Any] = lambda answer, parameters: answer
    wraps_one: bool = False


ROUTES = (
    TaskRoute(
        task="text-classification",
        kind=TextClassifier,
        input=str | Pair,
        parameters=ClassificationParameters,
        # All classes.
        keeps_none=("top_k",),
        wraps_one=True,
    ),
    TaskRoute(
        task="token-classification",
        kind=TokenClassifier,
        input=str,
        parameters=TokenParameters,
    ),
    TaskRoute(
        task="question-answering",
        kind=QuestionAnswerer,
        input=Question,
        parameters=QuestionParameters,
        each=lambda answer, parameters: answer[0] if parameters.top_k == 1 else answer,
    ),
    TaskRoute(task="fill-mask", kind=MaskFiller, input=str, parameters=FillParameters),
    TaskRoute(
        task="next-sentence-prediction",
        kind=NextSentencePredictor,
        input=Pair,
        parameters=NoParameters,
        each=lambda answer, parameters: answer[0],
    ),
    TaskRoute(
        task="multiple-choice",
        kind=ChoiceSelector,
        input=Choices,
        parameters=NoParameters,
    ),
)


def task_routes(models: Models) -> list[Route]:
    """Return a route for each task, which may have the name of a model in its path."""
    return [_route(each, models) for each in ROUTES]


def _route(route: TaskRoute, models: Models) -> Route:
    several = Annotated[list[route.input], Field(min_length=1)]  # type: ignore[name-defined]
    body_type = create_model(
        "".join(part.title() for part in route.task.split("-")) + "Body",
        inputs=(route.input | several, ...),
        parameters=(route.parameters, route.parameters()),
    )

    async def run(body: Any, model: str | None) -> Response:
        served = models.of_kind(route.kind, model)
        given = {
            name: value
            for name, value in body.parameters.model_dump().items()
            if value is not None or name in route.keeps_none
        }
        is_one = not isinstance(body.inputs, list)
        items = [body.inputs] if is_one else body.inputs
        # Jobs take texts, and mappings with the fields of the other inputs.
        inputs = [each if isinstance(each, str) else each.model_dump() for each in items]
        found = await served.run("job", given, inputs)
        answers = [route.each(each.answer, body.parameters) for each in found]
        return json_response(
            answers[0] if is_one and not route.wraps_one else answers,
            truncated=count_truncated(found),
        )

    return Route(
        path=f"/{route.task}",
        summary=f"Run {route.task}",
        tag="tasks",
        run=run,
        body=body_type,
        takes_model=True,
    )
