"""Print the result of a command: tables for people, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from qdqbert.cli._console import PlainConsole
from qdqbert.cli._errors import in_flags
from qdqbert.common.options.declared import Declared
from qdqbert.evidence.reporting.report import Report, json_ready
from qdqbert.evidence.reporting.terminal import WIDTH, rendered


def print_report(report: Report, options: Sequence[Declared], *, as_json: bool) -> None:
    """Print a report.

    Names of `options` are translated in messages.
    """
    # Answers on stdout are not mixed with the report.
    stream = sys.stderr if getattr(report, "output", None) == "-" else sys.stdout
    if as_json:
        print(json.dumps(json_ready(report), indent=2, ensure_ascii=False), file=stream)
        return
    console = PlainConsole(stream, width=None if stream.isatty() else WIDTH)
    tables = rendered(report, lambda text: in_flags(text, options))
    # Tables fit the width themselves. Only command lines may be longer.
    console.print(tables, crop=False)
