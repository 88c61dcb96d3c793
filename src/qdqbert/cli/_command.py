"""Make commands from the declared options of the public functions."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from qdqbert.cli._commands import Command
from qdqbert.cli._errors import ExitCode, in_flags, run_safely, show_messages, silence_libraries
from qdqbert.cli._output import print_report
from qdqbert.common.errors import UserInputError
from qdqbert.common.files import explaining_places
from qdqbert.common.options.declared import Declared, declared_options, in_groups
from qdqbert.common.progress import progress_of

# What the help of an option says about values that a command line cannot have.
_IN_PYTHON = re.compile(r"[.;] [Ii]n Python also .*?(?=[.;](?: |$))")

# Titles of the panels of options that are in no group.
_COMMON = "Common options"
# Values of `--progress`, and of `progress` in Python.
_PROGRESS: Mapping[str, Literal["json"] | bool] = {"bars": True, "json": "json", "none": False}
_MORE = "More options"


def add_command(app: App, command: Command) -> None:
    """Add a command to an app."""
    options = declared_options(command.options)
    parameters = [_parameter(each, command, options) for each in options]
    json_help = Parameter(help="Print the report as JSON.", negative=(), show_default=False)
    progress_help = Parameter(
        help="Show progress on stderr: as bars, as lines of JSON, or not at all."
        f" [choices: {', '.join(_PROGRESS)}]",
        metavar="CHOICE",
    )
    for name, kind, default, help_ in (
        ("json", bool, False, json_help),
        ("progress", str, "bars", progress_help),
    ):
        annotation: Any = Annotated[kind, help_, Parameter(group=Group(_COMMON, sort_key=0))]
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    is_variadic = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)

    def call(*arguments: Any, json: bool = False, progress: str = "bars", **given: Any) -> None:
        words = [arguments] if is_variadic else arguments
        values = dict(zip(command.positional, words, strict=False)) | given
        report = run_safely(
            lambda: _call(command, values, progress),
            options,
            as_json=json,
            left=lambda: command.after_interrupt(values),
        )
        # Of a distributed run, one process reports.
        if int(os.environ.get("RANK", "0")) == 0:
            print_report(report, options, as_json=json)
        if not report.meets_limits:
            sys.exit(int(ExitCode.QUALITY_GATE))

    call.__doc__ = in_flags(_summary(command.function), options)
    # Positional parameters have to be the first.
    first = [*command.positional, *command.first]
    ranks = {name: rank for rank, name in enumerate(first)}
    parameters.sort(key=lambda each: (each.kind, ranks.get(each.name, len(first))))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    # Without it, cyclopts shows a model that may be left out as "[ARGS]".
    may_be_left_out = [
        f"[{each.flag.upper()}]"
        for each in options
        if each.name in command.positional and each.is_optional
    ]
    app.command(
        call,
        name=command.name,
        usage=" ".join([f"Usage: qdqbert {command.name} [OPTIONS]", *may_be_left_out])
        if may_be_left_out
        else None,
        help_epilogue=f"Example: {command.example}",
    )


def _call(command: Command, given: Mapping[str, Any], progress: str) -> Any:
    """Check the options, which is fast, before anything heavy is imported."""
    if progress not in _PROGRESS:
        raise UserInputError(
            f"`--progress {progress}` is unknown. Choose one of: {', '.join(_PROGRESS)}."
        )
    options = declared_options(command.options)
    declared = {each.name: each for each in options}
    values = {name: _value(declared[name], value) for name, value in given.items()}
    arguments = in_groups(command.options, values)
    with explaining_places():
        command.options(**arguments)
        if command.runs_artifacts:
            show_messages(options)
        else:
            silence_libraries()
        return command.function(**arguments, progress=progress_of(_PROGRESS[progress]))


def _parameter(
    option: Declared, command: Command, options: Sequence[Declared]
) -> inspect.Parameter:
    """Return the parameter of a command for an option."""
    is_positional = option.name in command.positional
    is_several = option.is_sequence or option.is_mapping
    # Words, which `_value` and the options read: cyclopts rounds 1.5 to a whole number, and has
    # messages of its own. With pydantic imported, it also checks defaults, which can be numbers.
    kind: Any = bool if option.type is bool else str | int | float
    position: Any = inspect.Parameter.KEYWORD_ONLY
    if is_positional:
        variadic, single = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY
        position = variadic if is_several else single
    elif is_several:
        kind = tuple[str | int, ...]
    short = [f"-{letter}" for letter in option.settings.get("short", "")]
    parameter = Parameter(
        name=option.flag.upper() if is_positional else [f"--{option.flag}", *short],
        help=_help_text(option, command, options),
        group=_panel(option, command, options),
        negative=None if option.can_be_off else (),
        # By identity, as `0 == False` and `1.0 == True`.
        show_default=(
            not any(option.default is each for each in (None, (), True, False, dataclasses.MISSING))
            and _shown
        ),
        allow_leading_hyphen=option.settings.get("takes_dash", False),
        # The last of repeated values counts, unless there can be several.
        allow_repeating=None if is_several else True,
        metavar=_metavar(option),
        # An argument that takes several models needs one.
        required=True if is_positional and is_several else None,
    )
    is_required = option.default is dataclasses.MISSING
    return inspect.Parameter(
        option.name,
        position,
        default=inspect.Parameter.empty if is_required else option.default,
        annotation=Annotated[kind | None if option.is_optional else kind, parameter],
    )


# Words for a value in the help.
_METAVARS: Mapping[Any, str] = {int: "INT", float: "FLOAT"}


def _metavar(option: Declared) -> str | None:
    """Return the word for a value in the help; `None` for the default of the type."""
    if option.is_mapping:
        return "NAME=VALUE"
    word = "CHOICE" if option.choices else _METAVARS.get(option.item_type, "STR")
    return None if option.type is bool else f"{word}..." if option.is_sequence else word


def _shown(default: Any) -> str:
    """Return a default as a command line has it."""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _panel(option: Declared, command: Command, options: Sequence[Declared]) -> Group:
    """Return the panel of the help that an option is in. Groups with the same title share one."""
    titles = [_COMMON, _MORE, *(_title(each) for each in options)]
    title = _COMMON if option.name in command.first else _title(option)
    if title == _COMMON and command.first and option.name not in command.first:
        title = _MORE
    return Group(title, sort_key=titles.index(title))


def _title(option: Declared) -> str:
    """Return the first line of the docstring of the class that declares an option."""
    return (option.group.__doc__ or "").partition("\n")[0].rstrip(".")


def _help_text(option: Declared, command: Command, options: Sequence[Declared]) -> str:
    """Return the help of an option, in the words of the command line."""
    text = _IN_PYTHON.sub("", in_flags(option.help, options))
    if option.is_mapping:
        text = f"{text.partition(':')[0].rstrip('.')}."
    if _has_commas(option):
        text = f"{text} Separate several with commas."
    elif option.is_mapping or (option.is_sequence and option.name not in command.positional):
        text = f"{text} Repeat it for several."
    return f"{text} [choices: {', '.join(option.choices)}]" if option.choices else text


def _summary(function: Callable[..., Any]) -> str:
    """Return the docstring of a function up to its arguments, with one line a paragraph."""
    text = (inspect.getdoc(function) or "").partition("\nArgs:")[0].strip()
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


# How to read a number, and the words for it in messages.
_NUMBERS: Mapping[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "whole number"),
    float: (float, "number"),
}


def _value(option: Declared, value: Any) -> Any:
    """Read numbers, choices, and `NAME=VALUE`, separated by commas or given by repeated options."""
    if option.is_mapping:
        pairs = {}
        for word in _split(value):
            name, _, text = word.partition("=")
            if not name or not text:
                raise _refusal(option, word, "NAME=VALUE")
            pairs[name] = text
        return pairs
    if option.item_type in _NUMBERS:
        if option.is_sequence:
            return tuple(_number(option, word) for word in _split(value))
        return _number(option, value)
    return _split(value) if _has_commas(option) else value


def _has_commas(option: Declared) -> bool:
    """Return whether commas separate the values of an option."""
    is_plain = bool(option.choices) or option.item_type is int
    return option.is_sequence and (is_plain or bool(option.settings.get("commas")))


def _number(option: Declared, word: str) -> Any:
    read, noun = _NUMBERS[option.item_type]
    try:
        return read(word)
    except ValueError:
        expected = f"{noun}s separated by commas" if option.is_sequence else f"a {noun}"
        bounds = option.bounds_in_words
        raise _refusal(option, word, f"{expected}, {bounds}" if bounds else expected) from None


def _split(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for word in words for part in word.split(","))


def _refusal(option: Declared, words: str, expected: str) -> UserInputError:
    return UserInputError(f"`{option.name}={words!r}`: expected {expected}.", argument=option.name)
