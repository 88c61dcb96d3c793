"""The route of typed decisions, `/v1/systemone`, as `transformers serve` has it.

Source: transformers 5.23, `cli/serving/systemone.py`.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from pydantic import Field
from typing_extensions import TypedDict

from qdqbert.serving.fields import NamesModel, Refused
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served
from qdqbert.tasks.takes_labels import TakesLabels


class SystemOneBody(NamesModel):
    """Body of `/v1/systemone`."""

    refused: ClassVar[Refused] = {"assets": ({},)}

    state: str | dict[str, Any] | list[Any] = Field(
        description="A text to decide about; of an object or a list, its JSON is the text."
    )
    questions: dict[str, dict[str, Any]] = Field(
        min_length=1,
        max_length=64,
        description="Questions by name, with `type` (choice, score or noul) and `criteria`.",
    )
    temperature: float | None = Field(None, description="Divides logits of options; see `decide`.")
    threshold: float | None = Field(
        None, description="Least probability of an option that is chosen; below it, null is."
    )
    entailment_label: str | None = Field(
        None, description="The class of entailment, if classes have no names."
    )


class SystemOneUsage(TypedDict):
    """Numbers of tokens."""

    input_tokens: int
    output_tokens: int


class SystemOneAnswer(TypedDict):
    """Answer of `/v1/systemone`."""

    model: str
    answers: dict[str, dict[str, Any]]
    usage: SystemOneUsage


async def _decide(body: SystemOneBody, served: Served) -> Response:
    """Answer questions about a text, all in one request."""
    text = body.state if isinstance(body.state, str) else json.dumps(body.state, ensure_ascii=False)
    names = ("questions", "temperature", "threshold", "entailment_label")
    options = {name: getattr(body, name) for name in names}
    found = await served.run("deciding_job", options, [text])
    return found.response(
        {
            "model": served.name,
            "answers": found.each[0],
            "usage": {"input_tokens": found.tokens, "output_tokens": 0},
        }
    )


SYSTEM_ONE = (
    Route(
        path="/v1/systemone",
        summary="Decide between options of the request",
        tag="System One",
        run=_decide,
        body=SystemOneBody,
        answer=SystemOneAnswer,
        kinds=(TakesLabels,),
        fits=lambda model: model.takes_labels,
        example={
            "state": "I was charged twice.",
            "questions": {
                "topic": {"type": "choice", "criteria": {"billing": "a payment", "other": None}}
            },
        },
    ),
)
"""The routes."""
