"""The models of a server, and how a request finds one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NotRequired

import numpy as np
from typing_extensions import TypedDict

from qdqbert.common.choices import VectorKind
from qdqbert.common.errors import UserInputError
from qdqbert.common.json_files import shown
from qdqbert.data.tokenizing.tokenizer_files import Side
from qdqbert.runtime.model import Model, TextEncoder
from qdqbert.runtime.scheduler import Job
from qdqbert.serving.batcher import Batcher, OverloadedError, TooLongError, size_of
from qdqbert.serving.limits import BadRequestError, Limits
from qdqbert.serving.responses import Response, json_response
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.structures import read_structures

# At most, around a text.
_SPECIAL_TOKENS = 4
# Options with labels of a request.
_LABELS = ("labels", "candidate_labels")


class ServedInfo(TypedDict):
    """The answer of `/info` about a model."""

    name: str
    task: str
    engine: str
    target: str
    max_input_length: int
    max_client_batch_size: int
    vectors: NotRequired[list[VectorKind]]
    # `Model.facts`, as far as the task has them.
    pooling: NotRequired[str]
    normalize: NotRequired[bool]
    prompt: NotRequired[str]
    activation: NotRequired[str]
    template: NotRequired[bool]
    max_width: NotRequired[int]
    max_words: NotRequired[int]
    changed_entities: NotRequired[str]
    largest_difference: NotRequired[float]
    hypothesis_template: NotRequired[str]
    entailment_label: NotRequired[str | None]
    decision_temperature: NotRequired[float]


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model answers to the inputs of a request.

    Attributes:
        each: The answers.
        tokens: Number of tokens that ran.
        truncated: Number of inputs that were cut.
    """

    each: list[Any]
    tokens: int
    truncated: int

    @property
    def usage(self) -> Usage:
        """The numbers of tokens, as OpenAI's API has them."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}

    def response(self, content: Any) -> Response:
        """Return a response with JSON, whose headers say how many inputs were cut."""
        return json_response(content, truncated=self.truncated)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A model of a server.

    Attributes:
        name: Name of the model in requests.
        count_truncated: Called with the number of inputs of a request that were cut.
    """

    name: str
    model: Model
    batcher: Batcher
    limits: Limits
    count_truncated: Callable[[int], None] = lambda inputs: None

    @property
    def described(self) -> ServedInfo:
        """The answer of `/info` about the model: `vectors` if it makes several of a text."""
        found: Any = {
            "name": self.name,
            "task": self.model.task,
            "engine": self.model.engine,
            "target": self.model.target,
            "max_input_length": self.model.max_length,
            "max_client_batch_size": self.limits.max_texts,
            **self.model.facts,
        }
        kinds = self.model.vector_kinds if isinstance(self.model, Embedder) else ()
        if len(kinds) > 1:
            found["vectors"] = list(kinds)
        made: ServedInfo = found
        return made

    async def run(
        self,
        method: str,
        options: Mapping[str, Any],
        items: Sequence[Any],
        *,
        truncate: bool | None = None,
        side: Side | None = None,
    ) -> Answers:
        """Return the answers to the inputs of a request.

        Args:
            method: Name of the model's method that makes the job.
            options: Its arguments.
            items: The inputs.
            truncate: Whether inputs that are too long are cut, as they are by default.
            side: The end of an input that is cut off. The model's by default.

        Raises:
            BadRequestError: The inputs or options cannot be used, or too many inputs wait.
        """
        try:
            labels = self._check_labels(options)
        except UserInputError as error:
            raise BadRequestError(str(error)) from error
        self.check_count(items, labels if self.model.pairs_labels else 1)
        self._check_sizes(items)

        def job() -> Job[Any, Any]:
            made: Job[Any, Any] = getattr(self.model, method)(**options)
            if side is None or not isinstance(made, TextEncoder):
                return made
            cutting = made.tokenizer.cutting(made.tokenizer.max_length, side=side)
            return dataclasses.replace(made, tokenizer=cutting)

        try:
            key = (method, side, repr(options))
            found = await self.batcher.run(key, job, items, truncate=truncate is not False)
        except TooLongError as error:
            raise BadRequestError(str(error), 413) from error
        except UserInputError as error:
            raise BadRequestError(str(error)) from error
        except OverloadedError as error:
            retry = {"Retry-After": str(error.retry_after)}
            raise BadRequestError(str(error), 429, "Overloaded", headers=retry) from error
        answers = Answers(
            each=[each.answer for each in found],
            tokens=sum(each.tokens for each in found),
            truncated=sum(each.truncated for each in found),
        )
        if answers.truncated:
            self.count_truncated(answers.truncated)
        return answers

    def check_count(self, items: Sequence[Any], labels: int = 1) -> None:
        """Refuse more inputs than a request may have, if each is run with a number of labels.

        So is each of the choices of an input.
        """
        most = self.limits.max_texts
        count = sum(map(_choices, items)) * max(labels, 1)
        if count > most:
            several = " A text with each of its labels or choices is one." * (count > len(items))
            raise BadRequestError(f"A request may have {most} inputs, got {count}.{several}", 413)

    def _check_labels(self, options: Mapping[str, Any]) -> int:
        """Return the number of labels; refuse more than inputs, as models read each of them."""
        most = self.limits.max_texts
        count = sum(map(_leaves, _labels(options)))
        if count > most:
            what = "fields and choices" if "structures" in options else "labels"
            raise BadRequestError(f"A request may have {most} {what}, got {count}.", 413)
        return count

    def _check_sizes(self, items: Sequence[Any]) -> None:
        """Refuse texts that a model would read whole, in more windows than a request may have."""
        if self.model.reads_windows:
            for each in items:
                self.check_read([each])

    def check_read(self, items: Sequence[Any]) -> None:
        """Refuse inputs that together have too many characters to be read whole."""
        most = self.limits.max_read_characters
        if sum(map(size_of, items)) > most:
            raise BadRequestError(
                f"Inputs that are read whole may have {most} characters. Send them in parts.", 413
            )

    def check_states(self, texts: Sequence[str]) -> None:
        """Refuse texts that may have more tokens than a response may have states of."""
        most, longest = self.limits.max_states, self.model.max_length
        tokens = sum(min(len(text) + _SPECIAL_TOKENS, longest) for text in texts)
        if tokens > most:
            raise BadRequestError(
                f"The response may have the states of {most} tokens, and these texts may have "
                f"{tokens}. Send fewer at a time.",
                413,
            )


def _choices(item: Any) -> int:
    """Return the number of choices of an input; 1 for an input without."""
    values = item.values() if isinstance(item, Mapping) else ()
    return max((len(each) for each in values if isinstance(each, list)), default=1)


def _labels(options: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a request says about labels: lists and objects of them."""
    for each in (options.get(name) for name in _LABELS):
        yield each.split(",") if isinstance(each, str) else each or ()
    for question in (options.get("questions") or {}).values():
        yield question.get("criteria", ())
    # Choices of a field may be parts of one text.
    for structure in read_structures(options["structures"]) if "structures" in options else ():
        for field in structure.fields:
            yield (field.name, *field.choices)


def _leaves(value: Any) -> int:
    """Return the number of values in lists and objects, at any depth."""
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(inner, Collection) and not isinstance(inner, str):
        return sum(map(_leaves, inner))
    return 1


def check_width(
    vectors: Sequence[np.ndarray], requested: int | None, *, per_value: int = 1
) -> None:
    """Refuse a number of dimensions that the model does not have.

    `requested` is `None` for all, and `per_value` the number of dimensions that a value holds.
    """
    width = len(vectors[0]) * per_value
    if requested is not None and requested > width:
        raise BadRequestError(
            f"`dimensions` is {shown(requested)}, but embeddings of the model have {width}. "
            f"Send {width} or less, or leave it out.",
            400,
        )


class Models:
    """The models of a server by name."""

    def __init__(self, served: Sequence[Served]) -> None:
        self.by_name = {each.name: each for each in served}

    def named(self, name: str) -> Served:
        """Return a model.

        Raises:
            BadRequestError: There is no such model.
        """
        if name not in self.by_name:
            raise BadRequestError(
                f"There is no model {name!r}. {self._names()}", 404, "ModelNotFound"
            )
        return self.by_name[name]

    def names_of(self, runs: Callable[[Model], bool]) -> list[str]:
        """Return the names of the models that a route runs."""
        return [name for name, each in self.by_name.items() if runs(each.model)]

    def requested(
        self, runs: Callable[[Model], bool], *, in_path: str | None, in_body: str | None
    ) -> Served:
        """Return the model that a request means.

        Clients have to name a model in bodies. If the server has a single model, any name will do.

        Raises:
            BadRequestError: No model or several can answer it.
        """
        if in_path is not None or len(self.by_name) == 1:
            return self._that(runs, in_path)
        return self._that(runs, in_body)

    def _that(self, runs: Callable[[Model], bool], name: str | None) -> Served:
        if name is not None:
            found = self.named(name)
            if not runs(found.model):
                raise BadRequestError(
                    f"The model {name!r}, which is for the task {found.model.task!r}, does not run "
                    "this route."
                )
            return found
        fitting = self.names_of(runs)
        if not fitting:
            raise BadRequestError(
                f"No model of this server runs this route. {self._names()}", 404, "ModelNotFound"
            )
        if len(fitting) > 1:
            names = ", ".join(f"/models/{each}/..." for each in fitting)
            raise BadRequestError(f"Several models run this route. Name one in the path: {names}")
        return self.by_name[fitting[0]]

    def _names(self) -> str:
        shown = ", ".join(f"{each.name} ({each.model.task})" for each in self.by_name.values())
        return f"It has: {shown}."
