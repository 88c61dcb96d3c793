"""The route of zero-shot classification: classifiers of entailment choose among given labels.

Source: the pipeline "zero-shot-classification" of transformers. A label is entailed by a text if
"This example is LABEL." is.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import ConfigDict, Field

from qdqbert.serving.fields import Body, Renamed, in_parameters
from qdqbert.serving.limits import BadRequestError
from qdqbert.serving.responses import Response
from qdqbert.serving.routing import Route
from qdqbert.serving.service import Served
from qdqbert.serving.text_embeddings_inference import ScoredClass
from qdqbert.tasks.logits import apply
from qdqbert.tasks.text_classification import TextClassifier

_Labels = Annotated[list[str], Field(min_length=1)]


class ZeroShotParameters(Body):
    """Parameters of `/zero-shot-classification`."""

    model_config = ConfigDict(extra="forbid")

    candidate_labels: str | _Labels = Field(
        description="Labels to choose from, as a list or separated by commas."
    )
    hypothesis_template: str = Field(
        "This example is {}.", description="A sentence about a label, whose place is `{}`."
    )
    multi_label: bool = Field(False, description="Score each label alone.")


class ZeroShotBody(Body):
    """Body of `/zero-shot-classification`."""

    renamed: ClassVar[Renamed] = in_parameters(ZeroShotParameters)

    inputs: str | Annotated[list[str], Field(min_length=1)] = Field(
        description="A text or several."
    )
    parameters: ZeroShotParameters


async def _classify(body: ZeroShotBody, served: Served) -> Response:
    """Sort labels by how well they fit texts, the best one first."""
    given = body.parameters
    labels = given.candidate_labels
    if isinstance(labels, str):
        labels = [each.strip() for each in labels.split(",") if each.strip()]
    if not labels or "{}" not in given.hypothesis_template:
        raise BadRequestError(
            "`parameters`: expected at least one of `candidate_labels`, and `{}` in "
            "`hypothesis_template`, in the place of a label."
        )
    entailment, contradiction = _entailment(served)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    sentences = [given.hypothesis_template.replace("{}", each) for each in labels]
    pairs = [(text, sentence) for text in texts for sentence in sentences]
    found = await served.run("scoring_job", {"activation": "none"}, pairs)
    logits = np.stack(found.each).reshape(len(texts), len(labels), -1)
    if given.multi_label or len(labels) == 1:
        # The probability of entailment rather than contradiction.
        both = apply("softmax", logits[..., [contradiction, entailment]])
        scores = both[..., 1]
    else:
        scores = apply("softmax", logits[..., entailment])
    answers = []
    for row in scores:
        order = np.argsort(-row, kind="stable").tolist()
        answers.append([{"label": labels[index], "score": float(row[index])} for index in order])
    is_one = isinstance(body.inputs, str)
    return found.response(answers[0] if is_one else answers)


def _entailment(served: Served) -> tuple[int, int]:
    """Return the numbers of the class of entailment, and of the one that contradicts it."""
    model = served.model
    assert isinstance(model, TextClassifier), "the route has this kind"
    names = [name.lower() for name in model.labels]
    own = next((index for index, name in enumerate(names) if name.startswith("entail")), None)
    if own is None:
        raise BadRequestError(
            f"The model {served.name!r} has no class of entailment, which labels of a request "
            f"need. It has: {', '.join(model.labels)}."
        )
    # As transformers chooses it: the first class, or the last one if that is entailment.
    return own, 0 if own != 0 else -1


ZERO_SHOT = (
    Route(
        path="/zero-shot-classification",
        summary="Choose among labels of the request",
        tag="tasks",
        run=_classify,
        body=ZeroShotBody,
        answer=list[ScoredClass] | list[list[ScoredClass]],
        kinds=(TextClassifier,),
        example={
            "inputs": "A fine film.",
            "parameters": {"candidate_labels": ["good", "bad"]},
        },
    ),
)
"""The routes."""
