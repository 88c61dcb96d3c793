"""Routes that models have in a server. Each task has its own, and the server knows none of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRoute:
    """The requests that a kind of model answers, with the interface of Hugging Face's API.

    Attributes:
        inputs: Types of an input: `str`, or a dataclass, of which the job gets the fields.
        parameters: Defaults of the parameters by name. They are arguments of the model's `job`,
            whose annotations are their types. `...` stands for one that cannot be left out.
        method: Name of the model's method that makes the job.
        also: Other kinds of models that have the method.
        fits: Whether a model of these kinds is one that the route runs.
        answer: Returns the answer to an input, from the answer of the job and the parameters.
        wraps_one: Whether the answer to a request with one input is a list with that answer, as in
            Hugging Face's API.
        example: An input, to show how the route is called. `[MASK]` stands for the mask token of
            the model.
        example_parameters: Parameters that it is shown with.
    """

    inputs: tuple[type, ...]
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answer: Callable[[Any, Mapping[str, Any]], Any] = lambda answer, parameters: answer
    wraps_one: bool = False
    method: str = "job"
    also: tuple[type, ...] = ()
    fits: Callable[[Any], bool] = lambda model: True
    example: Any = "A fine film."
    example_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two texts."""

    text: str
    text_pair: str | None = None
