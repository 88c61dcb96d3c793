"""Public functions, whose parameters are the fields of a dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from qdqbert.common.files import explaining_places
from qdqbert.common.keywords import nearest
from qdqbert.common.objects import SavedModel, saved
from qdqbert.common.options.declared import (
    Declared,
    declared_options,
    docstring,
    groups_of,
    own_options,
)
from qdqbert.common.options.functions import parameters_of, with_arguments
from qdqbert.common.progress import Progress, progress_of
from qdqbert.pipeline.calls import Call

_P = ParamSpec("_P")
_Call = TypeVar("_Call", bound="Call")
_R = TypeVar("_R")


def public(
    options: Callable[_P, _Call],
) -> Callable[[Callable[[_Call, Progress], _R]], Callable[_P, _R]]:
    """Make a public function of one that takes a call.

    The public function has the fields of the call as parameters, and their help in its docstring.
    Models in memory are saved while it runs.
    """
    kind: Any = options

    def decorate(function: Callable[[_Call, Progress], _R]) -> Callable[_P, _R]:
        signature = _signature(kind, function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                arguments = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                others = {k: v for k, v in kwargs.items() if k not in signature.parameters}
                advice = _advice(kind, others)
                raise TypeError(f"{function.__name__}() {error}.{advice}") from None
            progress = progress_of(arguments.pop("progress", None))
            with contextlib.ExitStack() as stack:
                for each in own_options(kind):
                    if each.item_type == str | SavedModel and each.field in arguments:
                        value = arguments[each.field]
                        arguments[each.field] = _saved(each, value, stack)
                with explaining_places():
                    return function(kind(**arguments), progress)

        call.options = kind  # type: ignore[attr-defined]
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = with_arguments(docstring(function), kind, list(signature.parameters))
        return call

    return decorate


def _saved(option: Declared, value: Any, stack: contextlib.ExitStack) -> Any:
    """Return a model, or several, as paths. Models in memory are saved until the stack ends."""
    if option.is_sequence and isinstance(value, list | tuple):
        return [stack.enter_context(saved(each, option.name)) for each in value]
    return stack.enter_context(saved(value, option.name))


def _signature(options: type, function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function, `progress` last."""
    parameters = sorted(parameters_of(options), key=lambda each: each.name == "progress")
    return inspect.Signature(parameters, return_annotation=function.__annotations__["return"])


def _advice(options: type, unknown: Mapping[str, Any]) -> str:
    """Return how to pass values whose keywords a function does not take.

    Options of groups go into their group. A keyword that no option has may be misspelled.
    """
    known = _places(options)
    in_groups: dict[str, list[str]] = {}
    found = []
    for name, value in unknown.items():
        meant = nearest(name, known)
        if meant is None:
            continue
        parameter, field = known[meant]
        if field is None:
            found.append(f"`{parameter}={value!r:.100}`")
        else:
            in_groups.setdefault(parameter, []).append(f"{field}={value!r:.100}")
    for parameter, words in in_groups.items():
        group = groups_of(options)[parameter][0].__name__
        found.append(f"`{parameter}=qdqbert.{group}({', '.join(words)})`")
    if not found:
        return ""
    advice = " and ".join(found)
    return f" Pass {advice}." if known.keys() >= unknown.keys() else f" Did you mean {advice}?"


def _places(options: type) -> dict[str, tuple[str, str | None]]:
    """Return the parameter, and the field of its group if it is one, by the names of options.

    Names are those in Python, in messages and on the command line.
    """
    places: dict[str, tuple[str, str | None]] = {}
    for each in declared_options(options):
        place = (each.parameter, each.field if each.is_grouped else None)
        places |= dict.fromkeys((each.flag.replace("-", "_"), each.name, each.field), place)
    return places | {each.name: (each.name, None) for each in dataclasses.fields(options)}
