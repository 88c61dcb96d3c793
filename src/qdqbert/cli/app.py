"""The `qdqbert` command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from qdqbert.cli._command import add_command
from qdqbert.cli._commands import COMMANDS, Command
from qdqbert.cli._console import PlainConsole
from qdqbert.cli._errors import ExitCode, Terminated, fail
from qdqbert.common.files import temporary_error, temporary_places
from qdqbert.common.keywords import nearest
from qdqbert.common.options.declared import declared_options

# Names that options of other commands have in a command.
_MEANT = {
    "quantize": {"--engine": "--target", "--data": "--calibration-data"},
    "train": {"--max-steps": "--max-train-examples"},
    "run": {"--precision": "--target float"},
    # Other words are no more like it.
    "serve": {"--precision": ""},
}

# How long PyTorch's threads wait for each other before they sleep. With the default of some
# milliseconds, one other busy process made `quantize` 8 times as slow, and 1.6 times with this
# value, which costs nothing on an idle machine.
_SPINS = "3000"
# Columns and lines that a terminal can have.
_WIDEST = 10_000
# New objects between two runs of Python's garbage collector. The default is 700, and libraries
# create half a million objects while they are imported.
_NEW_OBJECTS = 20_000

app = App(
    name="qdqbert",
    help="Quantize BERT-family models to INT8, measure the result, and run them fast.",
    version=lambda: f"qdqbert {metadata.version('qdqbert')}",
    help_format="plaintext",
)
for _command in COMMANDS:
    add_command(app, _command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Entry point of the `qdqbert` script.

    Args:
        arguments: Words after `qdqbert`; the process's own if `None`.
    """
    signal.signal(signal.SIGTERM, _terminate)
    _set_up_process()
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            _call(words)
        finally:
            # The rest of the output may have no reader, either.
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes the stream when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(int(ExitCode.BROKEN_PIPE))


def _set_up_process() -> None:
    """Choose settings that libraries read when they are loaded, unless the user has chosen."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    # Libraries stop without a folder for temporary files. Memory is one on a read-only root.
    if temporary_error() is not None and (places := temporary_places()):
        os.environ["TMPDIR"] = str(places[0])
    # Rich prints nothing in no columns, and fills lines of any width.
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "")
        if not size.isdecimal() or not 0 < int(size[:9]) < _WIDEST:
            os.environ.pop(name, None)
    gc.set_threshold(_NEW_OBJECTS, 10, 10)


def _call(words: list[str]) -> None:
    """Run the command of a command line."""
    called = None
    for command in COMMANDS:
        if words[:1] == [command.name]:
            called = command
    try:
        app(words, exit_on_error=False, print_error=False, console=PlainConsole(sys.stdout))
    except CycloptsError as error:
        name = None if error.argument is None else error.argument.name
        message = _message(error, called, words)
        fail(message, ExitCode.USAGE, as_json="--json" in words, argument=name)


def _message(error: CycloptsError, command: Command | None, words: Sequence[str]) -> str:
    """Return the error in a command line, in the style of this package's messages."""
    argument = error.argument
    text = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and command is not None:
        return _unknown_option(error.token.keyword or error.token.value, command)
    if isinstance(error, MissingArgumentError) and command is not None:
        # A misspelled option looks like one that is missing.
        flags = _flags(command)
        for word in (each.partition("=")[0] for each in words):
            if word.startswith("--") and word not in flags:
                return _unknown_option(word, command)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        name = "" if command is None else f" of `qdqbert {command.name}`"
        return f"`{error.unused_tokens[0]}` is one argument{name} too many. Leave it out."
    if isinstance(error, CoercionError) and error.token is not None:
        flag, value = error.token.keyword, error.token.value
        return f"`{flag}={value}`: expected no value. Pass `{flag}`, or leave it out."
    if not isinstance(error, MissingArgumentError) or argument is None:
        return text
    given = error.keyword or next((token.keyword for token in argument.tokens), None)
    if given is not None:
        return f"`{given}` needs a value. {argument.parameter.help}"
    return f"`{argument.name}` is missing. {argument.parameter.help}"


def _flags(command: Command) -> dict[str, None]:
    """Return the names of a command's options, in their order."""
    own = [option.flag for option in declared_options(command.options)]
    every = ("--", "--help", "--version", "--json", *(f"--no-{each}" for each in own))
    return dict.fromkeys([*(f"--{each}" for each in own), *every])


def _unknown_option(flag: str, command: Command) -> str:
    """Return what replaces an option of another command or tool, or one that is misspelled."""
    name = flag.partition("=")[0]
    owners = [
        f"`qdqbert {each.name}`"
        for each in COMMANDS
        if name in {f"--{option.flag}" for option in declared_options(each.options)}
    ]
    similar = None if owners else nearest(name, _flags(command))
    meant = _MEANT.get(command.name, {}).get(name, similar)
    advice = f" Did you mean `{meant}`?" if meant else ""
    if not owners:
        return f"`{name}` is no option of `qdqbert {command.name}`.{advice}"
    return f"`{name}` is an option of {', '.join(owners)}, not of `qdqbert {command.name}`.{advice}"


def _terminate(number: int, frame: object) -> NoReturn:
    # An exception lets context managers remove partial folders.
    del number, frame
    raise Terminated
