"""Functions whose parameters are the fields of a class of options."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.options.declared import docstring, groups_of, helps_of, own_options

_P = ParamSpec("_P")
_First = TypeVar("_First")
_Options = TypeVar("_Options")
_R = TypeVar("_R")


def taking(
    options: Callable[_P, _Options],
) -> Callable[[Callable[[_First, _Options], _R]], Callable[Concatenate[_First, _P], _R]]:
    """Let a function take the fields of its options, its second parameter, as parameters.

    The fields' help is added to its docstring.
    """
    kind: Any = options

    def decorate(
        function: Callable[[_First, _Options], _R],
    ) -> Callable[Concatenate[_First, _P], _R]:
        own, added = inspect.signature(function), parameters_of(kind)
        first = next(iter(own.parameters))
        signature = own.replace(parameters=[own.parameters[first], *added])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> _R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(given.pop(first), kind(**given))

        made: Any = call
        made.__signature__ = signature
        made.__doc__ = with_arguments(docstring(function), kind, [each.name for each in added])
        return suggest_keywords(made)

    return decorate


def parameters_of(options: type) -> list[inspect.Parameter]:
    """Return the parameters: positional ones, then options that a class adds, then its groups."""
    found = inspect.signature(options).parameters
    names = [*(each.field for each in own_options(options)), *groups_of(options)]
    first = [each for each in found.values() if each.kind is not each.KEYWORD_ONLY]
    return first + [found[name] for name in names if found[name] not in first]


def with_arguments(text: str, options: type, names: list[str]) -> str:
    """Add the help of options to a docstring, after that of other parameters."""
    helps = helps_of(options)
    lines = [
        textwrap.fill(
            f"{name}: {helps[name]}", 96, initial_indent="    ", subsequent_indent=" " * 8
        )
        for name in names
    ]
    before, *after = re.split(r"(?m)^(?=Returns:|Raises:)", text, maxsplit=1)
    head = before.rstrip() if "Args:\n" in before else f"{before}Args:"
    return "\n".join([head, *lines, "", *after])
