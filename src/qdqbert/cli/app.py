"""The `qdqbert` command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from cyclopts import App, CycloptsError, MissingArgumentError

from qdqbert.cli import (
    analyze,
    benchmark,
    build_tensorrt,
    doctor,
    evaluate,
    export,
    push,
    quantize,
    run,
    serve,
    train,
    verify,
)
from qdqbert.cli._command import add_command
from qdqbert.cli._errors import ExitCode, Terminated, fail

_COMMANDS = (
    quantize.COMMAND,
    evaluate.COMMAND,
    analyze.COMMAND,
    train.COMMAND,
    benchmark.COMMAND,
    build_tensorrt.COMMAND,
    run.COMMAND,
    serve.COMMAND,
    export.COMMAND,
    verify.COMMAND,
    push.COMMAND,
    doctor.COMMAND,
)

app = App(
    name="qdqbert",
    help="Quantize BERT-family models to INT8, measure the result, and run them fast.",
    version=lambda: f"qdqbert {metadata.version('qdqbert')}",
    help_format="plaintext",
)
for _command in _COMMANDS:
    add_command(app, _command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Entry point of the `qdqbert` script.

    Args:
        arguments: Words after `qdqbert`; those of the process if `None`.
    """
    signal.signal(signal.SIGTERM, _terminate)
    words = sys.argv[1:] if arguments is None else list(arguments)
    for command in _COMMANDS:
        if words[:1] == [command.name]:
            words = command.rewrite(words)
    try:
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        name = None if error.argument is None else error.argument.name
        fail(_message(error), ExitCode.USAGE, as_json="--json" in words, argument=name)


def _message(error: CycloptsError) -> str:
    """Return what is wrong with a command line, in the style of this package's errors."""
    argument = error.argument
    text = " ".join(str(error).split())
    if not isinstance(error, MissingArgumentError) or argument is None:
        return text
    given = error.keyword or next((token.keyword for token in argument.tokens), None)
    if given is not None:
        return f"`{given}` needs a value. {argument.parameter.help}"
    return f"`{argument.name}` is missing. {argument.parameter.help}"


def _terminate(number: int, frame: object) -> NoReturn:
    # An exception lets context managers remove partial folders.
    del number, frame
    raise Terminated
