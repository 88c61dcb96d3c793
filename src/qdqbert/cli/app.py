"""The `qdqbert` command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from cyclopts import App, CycloptsError

from qdqbert.cli import benchmark, build_tensorrt, evaluate, quantize, train
from qdqbert.cli._command import add_command
from qdqbert.cli._errors import ExitCode, fail

_COMMANDS = (
    quantize.COMMAND,
    evaluate.COMMAND,
    train.COMMAND,
    benchmark.COMMAND,
    build_tensorrt.COMMAND,
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
    signal.signal(signal.SIGTERM, _exit)
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        message = " ".join(str(error).split())
        fail(message, ExitCode.USAGE, as_json="--json" in words)


def _exit(number: int, frame: object) -> NoReturn:
    # An exception lets context managers remove partial folders.
    del frame
    sys.exit(128 + number)
