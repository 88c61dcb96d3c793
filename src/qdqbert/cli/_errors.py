"""Turn exceptions into messages and exit codes of the command line."""

from __future__ import annotations

import enum
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from qdqbert.cli._commands import COMMANDS
from qdqbert.cli._console import PlainConsole
from qdqbert.common.errors import GraphError, QdqBertError, shortened
from qdqbert.common.options.declared import Declared, declared_options
from qdqbert.verbs.quantize.options import QuantizeOptions

_Report = TypeVar("_Report")


class ExitCode(enum.IntEnum):
    """Exit codes of all commands."""

    OK = 0
    # A bug in this package, or an invalid graph.
    FAILED = 1
    # An argument, a file or the environment cannot be used.
    USAGE = 2
    # The model does not meet a limit that the user set.
    QUALITY_GATE = 3
    INTERRUPTED = 130
    # Nobody reads the output any more, as in `qdqbert ... | head`.
    BROKEN_PIPE = 141
    # Stopped by SIGTERM.
    TERMINATED = 143


class Terminated(BaseException):
    """The process got SIGTERM. Like `KeyboardInterrupt`, not caught by `except Exception`."""


def exit_code_of(error: QdqBertError) -> ExitCode:
    """Return the exit code for an exception."""
    return ExitCode.FAILED if isinstance(error, GraphError) else ExitCode.USAGE


# A name in backticks, or a name with a value.
_NAME = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")
# What may be the name of a command.
_WORDS = re.compile(r"`(?:qdqbert )?([a-z]+)`")
# A text that says whose options it names.
_QUANTIZE = re.compile(r"\bquantize\b", re.IGNORECASE)


def in_flags(text: str, options: Sequence[Declared]) -> str:
    """Replace the names of options in backticks by their names on the command line.

    Example: "`max_length=2` is too small" becomes "`--max-length 2` is too small". Messages of
    other commands also name options of `quantize`, which has to write the folder in another way,
    and say so, and those of commands that the text names.
    """
    named = set(_WORDS.findall(text))
    known = [
        *options,
        *(x for each in COMMANDS if each.name in named for x in declared_options(each.options)),
    ]
    own = {option.name for option in known}
    flags = {option.name: option for option in (*declared_options(QuantizeOptions), *known)}
    foreign = "" if _QUANTIZE.search(text) else " of `quantize`"

    def replaced(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in flags:
            return match.group()
        option = flags[name]
        words = _spelled(option)
        if value == "False":
            words = f"--no-{option.flag}"
        elif value not in (None, "True"):
            words = f"{words} {_without_quotes(value)}"
        return f"`{words}`" + (foreign if name not in own else "")

    return _NAME.sub(replaced, text)


def run_safely(
    call: Callable[[], _Report],
    options: Sequence[Declared],
    *,
    as_json: bool,
    left: Callable[[], str],
) -> _Report:
    """Call a function. An error of the user becomes one line on stderr and an exit code.

    Args:
        call: The function.
        options: Options of the command, whose names are translated.
        as_json: Whether to print errors as JSON, too.
        left: Returns a sentence on what an interruption has left.
    """
    try:
        return call()
    except QdqBertError as error:
        spelled = {option.name: _spelled(option) for option in options}
        fail(
            in_flags(str(error), options),
            exit_code_of(error),
            as_json=as_json,
            argument=spelled.get(error.argument or ""),
        )
    except KeyboardInterrupt:
        fail(f"Interrupted. {left()}", ExitCode.INTERRUPTED, as_json=as_json)
    except Terminated:
        fail(f"Stopped by SIGTERM. {left()}", ExitCode.TERMINATED, as_json=as_json)


def fail(message: str, code: int, *, as_json: bool, argument: str | None = None) -> NoReturn:
    """Print an error and exit."""
    message = shortened(message)
    if as_json:
        content = {"error": message, "argument": argument, "exit_code": int(code)}
        print(json.dumps(content, ensure_ascii=False))  # noqa: T201
    PlainConsole(sys.stderr).print_line(f"Error: {message}", style="red")
    sys.exit(int(code))


def _spelled(option: Declared) -> str:
    """Return the name of an option on the command line."""
    return option.name.upper() if option.name in ("model", "models") else f"--{option.flag}"


def _without_quotes(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


class _StderrHandler(logging.Handler):
    """Prints messages of the log on stderr, with the names of a command's options."""

    def __init__(self, options: Sequence[Declared]) -> None:
        super().__init__()
        self.options = options

    def emit(self, record: logging.LogRecord) -> None:
        PlainConsole(sys.stderr).print_line(in_flags(record.getMessage(), self.options))


def show_messages(options: Sequence[Declared]) -> None:
    """Print messages of this package's log on stderr, with the names of a command's options."""
    logger = logging.getLogger("qdqbert")
    logger.setLevel(logging.INFO)
    for each in logger.handlers:
        if isinstance(each, _StderrHandler):
            logger.removeHandler(each)
    logger.addHandler(_StderrHandler(options))


def silence_libraries() -> None:
    """Turn off progress bars and messages of libraries below errors."""
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for library in ("torch", "huggingface_hub"):
        logging.getLogger(library).setLevel(logging.ERROR)
