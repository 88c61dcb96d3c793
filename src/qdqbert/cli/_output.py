"""Print the result of a command: tables for people, or JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from qdqbert.cli._console import PlainConsole
from qdqbert.cli._errors import in_flags
from qdqbert.files import json_values
from qdqbert.options import Declared

Renderer = Callable[[Any], RenderableType]

_WIDTH_WITHOUT_TERMINAL = 110


def print_report(
    report: Any,
    options: Sequence[Declared],
    render: Renderer,
    closing: Callable[[Any], Sequence[str]] = lambda _: (),
    *,
    as_json: bool,
) -> None:
    """Print a report.

    Args:
        report: Result of a public function.
        options: Options of the command, whose names are translated in messages.
        render: Makes a table of the report.
        closing: Makes the last lines of the report.
        as_json: Print JSON instead.
    """
    # Answers on stdout are not mixed with the report.
    stream = sys.stderr if getattr(report, "output", None) == "-" else sys.stdout
    if as_json:
        content = json_values(dataclasses.asdict(report))
        print(json.dumps(content, indent=2, ensure_ascii=False), file=stream)
        return
    console = PlainConsole(stream, width=None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL)
    warnings = [
        Text(f"WARNING: {in_flags(text, options)}", style="bold red")
        for text in getattr(report, "warnings", ())
    ]
    notices = [
        Text(f"Note: {in_flags(text, options)}", style="yellow")
        for text in getattr(report, "notices", ())
    ]
    directory = getattr(report, "directory", None)
    written = [] if directory is None else [Text(f"Written to {directory}")]
    # Tables fit the width themselves. Only command lines may be longer.
    last = [Text(line) for line in closing(report)]
    console.print(Group(render(report), *warnings, *notices, *written, *last), crop=False)
