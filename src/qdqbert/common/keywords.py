"""Arguments of public functions: misspelled keywords, and numbers of NumPy."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Names of parameters in sentence-transformers before version 6, by the names of today.
_OLD_NAMES = {"inputs": "sentences", "activation_fn": "activation_fct"}
# Keywords that sentence-transformers and transformers take, and that change no result here: how
# inputs are padded, and how the work is divided.
_WITHOUT_EFFECT = {
    "inputs": ("padding", "num_workers", "pool", "chunk_size", "save_to_cpu"),
    "documents": ("num_workers", "pool", "chunk_size", "apply_softmax"),
}
# What replaces keywords of older versions of transformers, by the parameter of today.
_REPLACED = {
    "return_all_scores": ("top_k", "top_k=None"),
    "grouped_entities": ("aggregation_strategy", "aggregation_strategy='simple'"),
    "ignore_subwords": ("aggregation_strategy", "aggregation_strategy='first'"),
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that is spelled most like another one; `None` if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def unknown(keyword: str, function: str, known: Sequence[str]) -> TypeError:
    """Return the error about a keyword that a function does not have, with the nearest one."""
    parameter, replacement = _REPLACED.get(keyword, ("", ""))
    meant = replacement if parameter in known else nearest(keyword, known)
    advice = f" Did you mean `{meant}`?" if meant else ""
    return TypeError(f"{function}() got an unexpected keyword argument {keyword!r}.{advice}")


def plain(value: Any) -> Any:
    """Return a number of NumPy or torch as one of Python's, and other values as they are."""
    is_scalar = getattr(value, "shape", None) == () and callable(getattr(value, "item", None))
    return value.item() if is_scalar else value


def suggest_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function name the nearest parameter if it gets a keyword that it does not have.

    Numbers of NumPy are passed on as Python's: they would overflow, and JSON has none.
    """
    parameters = inspect.signature(function).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [each.name for each in parameters if each.kind in named]
    ignored = {each for name in names for each in _WITHOUT_EFFECT.get(name, ())} - set(names)
    old_names = {old: new for new, old in _OLD_NAMES.items() if new in names and old not in names}

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for old in old_names.keys() & kwargs.keys():
            kwargs[old_names[old]] = kwargs.pop(old)
        for keyword in ignored & kwargs.keys():
            del kwargs[keyword]
        for keyword in kwargs:
            if keyword not in names:
                raise unknown(keyword, function.__qualname__.removesuffix(".__init__"), names)
        values: Any = {name: plain(value) for name, value in kwargs.items()}
        given: Any = map(plain, args)
        return function(*given, **values)

    return call
