"""The `qdqbert` command."""

from __future__ import annotations

import signal
import sys
from importlib import metadata
from typing import NoReturn

from cyclopts import App

from qdqbert.cli import benchmark, build_tensorrt, evaluate, quantize, train
from qdqbert.cli._command import add_command

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


def main() -> None:
    """Run the command line. Entry point of the `qdqbert` script."""
    signal.signal(signal.SIGTERM, _exit)
    app()


def _exit(number: int, frame: object) -> NoReturn:
    # An exception lets context managers remove partial folders.
    del frame
    sys.exit(128 + number)
