"""Public functions, whose parameters are the fields of a dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, get_args

from qdqbert.common.errors import CheckpointError, DataFileError
from qdqbert.common.files import explaining_places
from qdqbert.common.keywords import nearest
from qdqbert.common.objects import Downloaded, Rows, SavedModel, fetched, named, saved
from qdqbert.common.options.declared import Declared, declared_options, docstring, groups_of, placed
from qdqbert.common.options.functions import parameters_of, with_arguments
from qdqbert.common.progress import Progress, progress_of
from qdqbert.pipeline.calls import Call

# Options that name a file of texts, which are no examples.
_TEXTS = ("keep_vocabulary",)

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
                declared = declared_options(kind)
                for each in filter(lambda option: option.is_path, declared):
                    # Before anything is downloaded.
                    placed(each, _value(arguments, each))
                for each in declared:
                    _make_local_(arguments, each, stack, progress)
                options = kind(**arguments)
                with explaining_places():
                    found: _R = named(function(options, progress), _copies(options))
                    return found

        call.options = kind  # type: ignore[attr-defined]
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = with_arguments(docstring(function), kind, list(signature.parameters))
        return call

    return decorate


def _make_local_(
    arguments: dict[str, Any], option: Declared, stack: contextlib.ExitStack, progress: Progress
) -> None:
    """Replace a model in memory, and what a URL names, by a copy that is there for the call.

    `stack` removes what was saved, and names URLs in errors.
    """
    kinds, value = get_args(option.item_type), _value(arguments, option)
    if Downloaded not in kinds or value is None:
        return

    def local(item: Any) -> Any:
        if SavedModel in kinds:
            return stack.enter_context(saved(item, option.name, progress))
        has_texts = Rows in kinds or option.name in _TEXTS
        kind = DataFileError if has_texts else CheckpointError
        return stack.enter_context(fetched(item, option.name, kind, progress))

    if option.is_sequence and isinstance(value, list | tuple):
        found: Any = [local(each) for each in value]
    else:
        found = local(value)
    if found is value:
        return
    if option.is_grouped:
        found = dataclasses.replace(arguments[option.parameter], **{option.field: found})
    arguments[option.parameter] = found


def _value(arguments: Mapping[str, Any], option: Declared) -> Any:
    """Return the value that arguments give an option; `None` if they give none."""
    holder = arguments.get(option.parameter)
    return getattr(holder, option.field, None) if option.is_grouped else holder


def _copies(options: Any) -> list[Downloaded]:
    """Return the local copies among the values of options."""
    kind: type = type(options)
    values = [each.value(options) for each in declared_options(kind)]
    every = itertools.chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in values)
    return [each for each in every if isinstance(each, Downloaded)]


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
