"""Public functions, whose parameters are the fields of a dataclass."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from qdqbert.common.choices import RecipeName
from qdqbert.common.files import explaining_places
from qdqbert.common.keywords import nearest
from qdqbert.common.objects import OptionalData, SavedModel, saved
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.columns import Columns
from qdqbert.common.options.declared import (
    Declared,
    Options,
    declared_options,
    docstring,
    groups_of,
    option,
    own_options,
)
from qdqbert.common.options.functions import with_arguments
from qdqbert.common.options.onnx import Onnx
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.common.progress import Progress, progress_of
from qdqbert.encoders.task_kinds import TaskName

_P = ParamSpec("_P")
_Call = TypeVar("_Call", bound="Call")
_R = TypeVar("_R")


class Call(Options):
    """Common options.

    Attributes:
        progress: Show progress bars on stderr; in notebooks by default. A `Progress` object
            receives the stages instead.
    """

    progress: Progress | bool | None = option(default=None, python_only=True)


class TaskCall(Call):
    """Common options.

    Attributes:
        task: Name of the task in transformers. Inferred from the model by default.
        max_length: Longest input in tokens. By default the limit that the model was trained or
            quantized with, or the limit of the task or the checkpoint.
        columns: Columns of the data, where their names do not tell.
        task_options: Settings of the task.
    """

    task: TaskName | None = None
    max_length: int | None = option(default=None, at_least=3)
    columns: Columns = Columns()
    task_options: TaskOptions = TaskOptions()


class BatchCall(TaskCall):
    """Common options.

    Attributes:
        batch_size: Number of examples in a batch. `evaluate` ignores it for folders of `quantize`,
            which run in the batches of `load`.
        onnx: Names and the tokenizer of an .onnx file.
    """

    batch_size: int = option(default=8, at_least=1)
    onnx: Onnx = Onnx()


class CalibratingCall(BatchCall):
    """Common options.

    Attributes:
        recipe: Which tensors to quantize. By default the checkpoint's own quantizers decide,
            or else the target's default recipe.
        calibration_data: Examples to calibrate on: a .csv, .jsonl, .parquet or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        calibration: How ranges are found.
        quantizers: Changes to the quantizers of the recipe.
    """

    recipe: RecipeName | None = None
    calibration_data: OptionalData = option(default=None)
    calibration: Calibration = Calibration()
    quantizers: Quantizers = Quantizers()


def public(
    options: Callable[_P, _Call],
) -> Callable[[Callable[[_Call, Progress], _R]], Callable[_P, _R]]:
    """Make a public function of one that takes a call.

    The public function has the fields of the call as parameters, and their help in its docstring.
    Models in memory are saved while it runs.

    Args:
        options: Class of the call.
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
        call.__doc__ = with_arguments(docstring(function), kind, signature)
        return call

    return decorate


def _saved(option: Declared, value: Any, stack: contextlib.ExitStack) -> Any:
    """Return a model, or several, as paths. Models in memory are saved until the stack ends."""
    if option.is_sequence and isinstance(value, list | tuple):
        return [stack.enter_context(saved(each, option.name)) for each in value]
    return stack.enter_context(saved(value, option.name))


def _signature(options: type, function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters: positional ones, then options that a class adds, then its groups."""
    found = inspect.signature(options).parameters
    names = [each.field for each in own_options(options) if each.field != "progress"]
    names = [*names, *groups_of(options), "progress"]
    ordered = [each for each in found.values() if each.kind is not each.KEYWORD_ONLY]
    ordered += [found[name] for name in names if found[name] not in ordered]
    return inspect.Signature(ordered, return_annotation=function.__annotations__["return"])


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
