"""Signatures and docstrings of functions whose parameters are the fields of a class of options."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.options.declared import docstring, helps_of

_P = ParamSpec("_P")
_Self = TypeVar("_Self")
_Options = TypeVar("_Options")


def constructor(
    options: Callable[_P, _Options],
) -> Callable[[Callable[[_Self, _Options], None]], Callable[Concatenate[_Self, _P], None]]:
    """Make an `__init__` with the fields of a class as parameters of one that takes its options.

    Args:
        options: The class of the options.
    """
    kind: Any = options

    def decorate(
        function: Callable[[_Self, _Options], None],
    ) -> Callable[Concatenate[_Self, _P], None]:
        given = inspect.signature(kind)
        first, *_ = inspect.signature(function).parameters.values()

        @functools.wraps(function)
        def call(self: _Self, *args: _P.args, **kwargs: _P.kwargs) -> None:
            function(self, options(*args, **kwargs))

        made: Any = call
        made.__signature__ = given.replace(parameters=[first, *given.parameters.values()])
        made.__doc__ = with_arguments(docstring(function), kind, given)
        return suggest_keywords(made)

    return decorate


def with_arguments(text: str, options: type, signature: inspect.Signature) -> str:
    """Add the help of the parameters to a docstring."""
    helps = helps_of(options)
    lines = [
        textwrap.fill(
            f"{name}: {helps[name]}", 96, initial_indent="    ", subsequent_indent=" " * 8
        )
        for name in signature.parameters
    ]
    before, *after = re.split(r"(?m)^(?=Returns:|Raises:)", text, maxsplit=1)
    return "\n".join([f"{before}Args:", *lines, "", *after])
