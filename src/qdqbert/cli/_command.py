"""Make commands from the declared options of the public functions."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from cyclopts import App, Group, Parameter, Token

from qdqbert.cli._errors import (
    ExitCode,
    in_flags,
    run_safely,
    show_messages,
    silence_libraries,
)
from qdqbert.cli._output import Renderer, print_report
from qdqbert.errors import UserInputError
from qdqbert.options import Declared, declared_options, described, in_groups
from qdqbert.progress import Bars

# Titles of the panels of options that are in no group.
_COMMON = "Common options"
_MORE = "More options"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command that calls a public function.

    Attributes:
        name: Name on the command line.
        function: The public function. Its docstring is the help of the command.
        options: Dataclass that declares the options of the function.
        positional: Names of the options that are arguments without a flag.
        render: Makes what is printed from the function's report.
        example: A command line for `--help`.
        first: Names of the options that `--help` begins with; all that are in no group if empty.
        after_interrupt: What is left when the command is interrupted.
        runs_artifacts: Whether the command needs no transformers, and shows messages of the log.
        closing: Makes the last lines that are printed from the function's report.
        rewrite: Returns the words of a command line as they are parsed. It adds values to options
            that may have none.
    """

    name: str
    function: Callable[..., Any]
    options: type
    positional: tuple[str, ...]
    render: Renderer
    example: str
    first: tuple[str, ...] = ()
    after_interrupt: Callable[[Mapping[str, Any]], str] = lambda _: "Nothing was written."
    runs_artifacts: bool = False
    closing: Callable[[Any], Sequence[str]] = lambda _: ()
    rewrite: Callable[[list[str]], list[str]] = lambda words: words


def add_command(app: App, command: Command) -> None:
    """Add a command to an app."""
    options = declared_options(command.options)
    parameters = [_parameter(each, command, options) for each in options]
    parameters.append(_json_parameter())
    is_variadic = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)

    def call(*arguments: Any, **given: Any) -> None:
        values = dict(zip(command.positional, arguments, strict=False))
        if is_variadic:
            values = {command.positional[0]: arguments}
        as_json = given.pop("json", False)
        values |= given
        report = run_safely(
            lambda: _call(command, _with_pairs(values, options)),
            options,
            as_json=as_json,
            left=command.after_interrupt(values),
        )
        # Of a distributed run, one process reports.
        if int(os.environ.get("RANK", "0")) == 0:
            print_report(report, options, command.render, command.closing, as_json=as_json)
        if not getattr(report, "meets_limits", True):
            sys.exit(int(ExitCode.QUALITY_GATE))

    call.__name__ = command.name.replace("-", "_")
    call.__doc__ = in_flags(_summary(command.function), options)
    # Positional parameters have to be the first.
    parameters.sort(key=lambda each: (each.kind, _rank(each.name, command)))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(call, name=command.name, help_epilogue=f"Example: {command.example}")


def _call(command: Command, values: Mapping[str, Any]) -> Any:
    """Check the options, which is fast, before anything heavy is imported."""
    arguments = in_groups(command.options, values)
    command.options(**arguments)
    if command.runs_artifacts:
        show_messages()
    else:
        silence_libraries()
    return command.function(**arguments, progress=Bars())


def _with_pairs(values: Mapping[str, Any], options: Sequence[Declared]) -> dict[str, Any]:
    """Return the values with `NAME=VALUE` words as mappings."""
    parsed = {
        each.name: _pairs(each, values[each.name])
        for each in options
        if _is_mapping(each.type) and values.get(each.name)
    }
    return {**values, **parsed}


def _parameter(
    option: Declared, command: Command, options: Sequence[Declared]
) -> inspect.Parameter:
    """Return the parameter of a command for an option."""
    is_positional = option.name in command.positional
    kind: Any = option.type
    converter: Callable[..., Any] | None = None
    tokens: int | None = None
    is_sequence, is_mapping = get_origin(option.type) is tuple, _is_mapping(option.type)
    if is_positional and is_sequence:
        kind = get_args(option.type)[0]
    elif is_sequence and get_args(option.type)[0] is int:
        converter, tokens = _numbers, 1
    elif is_sequence and option.choices:
        kind, converter, tokens = tuple[str, ...], _names, 1
    elif option.choices:
        # The options check their choices themselves. With pydantic imported, cyclopts would check
        # the literals of the type before, with a message of its own.
        kind, converter, tokens = str, _word, 1
    elif is_mapping:
        kind = tuple[str, ...]
    elif isinstance(option.type, types.UnionType):
        # True, of which a word has to be made (see `Command.rewrite`), or rows in memory.
        kind = str
    if option.is_optional:
        kind = kind | None
    metavar = None
    if is_mapping or option.choices:
        metavar = "NAME=VALUE" if is_mapping else "CHOICE..." if is_sequence else "CHOICE"
    short = option.settings.get("short")
    names = [f"--{option.flag}", *([f"-{short}"] if short else [])]
    annotation: Any = Annotated[
        kind,
        Parameter(
            name=option.flag.upper() if is_positional else names,
            help=_help_text(option, command, options),
            group=_panel(option, command, options),
            # Only an option that is on by default can be turned off.
            negative=None if option.default is True else (),
            show_default=_shows_default(option),
            converter=converter,
            n_tokens=tokens,
            allow_leading_hyphen=bool(option.settings.get("takes_dash")),
            # The last of repeated values counts, unless there can be several.
            allow_repeating=None if is_sequence or is_mapping else True,
            metavar=metavar,
        ),
    ]
    if not is_positional:
        return inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(option),
            annotation=annotation,
        )
    if is_sequence:
        return inspect.Parameter(
            option.name, inspect.Parameter.VAR_POSITIONAL, annotation=annotation
        )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.POSITIONAL_ONLY,
        default=_default(option),
        annotation=annotation,
    )


def _json_parameter() -> inspect.Parameter:
    return inspect.Parameter(
        "json",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[
            bool,
            Parameter(
                name="--json",
                help="Print the report as JSON.",
                negative=(),
                show_default=False,
                group=Group(_COMMON, sort_key=0),
            ),
        ],
    )


def _default(option: Declared) -> Any:
    return inspect.Parameter.empty if option.default is dataclasses.MISSING else option.default


def _shows_default(option: Declared) -> bool:
    # By identity, as `0 == False` and `1.0 == True`.
    return not any(option.default is each for each in (None, (), True, False, dataclasses.MISSING))


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _panel(option: Declared, command: Command, options: Sequence[Declared]) -> Group:
    """Return the panel of the help that an option is in. Groups with the same title share one."""
    titles = [_COMMON, _MORE, *(_title(each) for each in options)]
    title = _COMMON if option.name in command.first else _title(option)
    if title == _COMMON and command.first and option.name not in command.first:
        title = _MORE
    return Group(title, sort_key=titles.index(title))


def _title(option: Declared) -> str:
    """Return the first line of a group's docstring; "Common options" if the option has no group."""
    first_line = (option.group.__doc__ or "").partition("\n")[0].rstrip(".")
    return first_line if option.is_grouped or option.help else _COMMON


def _rank(name: str, command: Command) -> int:
    """Return the position of an option in its panel."""
    return command.first.index(name) if name in command.first else len(command.first)


def _help_text(option: Declared, command: Command, options: Sequence[Declared]) -> str:
    """Return the help of an option, in the words of the command line."""
    text = in_flags(option.help or described(command.function, "Args")[option.name], options)
    if get_origin(option.type) is tuple and option.name not in command.positional:
        text = f"{text} Repeat it for several."
    if _is_mapping(option.type):
        text = f"{text.partition(':')[0].rstrip('.')}. Repeat it for several."
    if option.choices:
        text = f"{text} [choices: {', '.join(option.choices)}]"
    return text


def _summary(function: Callable[..., Any]) -> str:
    """Return the docstring of a function up to its arguments, with one line a paragraph."""
    text = (inspect.getdoc(function) or "").partition("\nArgs:")[0].strip()
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _numbers(kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Parse whole numbers, separated by commas or given by repeated options."""
    del kind
    try:
        return tuple(int(part) for token in tokens for part in token.value.split(","))
    except ValueError:
        words = ",".join(token.value for token in tokens)
        raise ValueError(f"expected whole numbers separated by commas, got {words!r}") from None


def _word(kind: Any, tokens: Sequence[Token]) -> str:
    """Return a word as it was given; the last one of repeated options."""
    del kind
    return tokens[-1].value


def _names(kind: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Parse names, separated by commas or given by repeated options."""
    del kind
    return tuple(part for token in tokens for part in token.value.split(","))


def _pairs(option: Declared, words: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE`, separated by commas or given by repeated options.

    Raises:
        UserInputError: A name or a value is missing.
    """
    pairs = {}
    for part in (part for word in words for part in word.split(",")):
        name, _, value = part.partition("=")
        if not name or not value:
            raise UserInputError(
                f"`{option.name}={part!r}`: expected NAME=VALUE.", argument=option.name
            )
        pairs[name] = value
    return pairs
