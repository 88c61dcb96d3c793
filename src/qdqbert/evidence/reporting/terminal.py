"""A report as tables, for a terminal or as plain text."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator

import rich.table
from rich.console import Console, Group, RenderableType
from rich.text import Text

from qdqbert.evidence.reporting.document import HasDocument, Section, Table

WIDTH = 110
"""Width where there is no terminal."""

_STYLES = {"good": "green", "doubtful": "yellow", "bad": "bold red", "plain": ""}


def plain_text(report: HasDocument) -> str:
    """Return the text of a report for a terminal, without colors."""
    stream = io.StringIO()
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    console = Console(file=stream, width=width, color_system=None, force_jupyter=False)
    console.print(rendered(report), crop=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def rendered(report: HasDocument, spelled: Callable[[str], str] = str) -> RenderableType:
    """Return a report for a terminal: the result first, the command that runs it last.

    `spelled` translates names of options in texts.
    """
    return Group(*_parts(report, spelled))


def _parts(report: HasDocument, spelled: Callable[[str], str]) -> Iterator[RenderableType]:
    document = report.document()
    yield Text(document.title, "bold")
    if document.summary:
        yield Text(spelled(document.summary))
    if document.verdict:
        verdict = ": ".join(filter(None, (document.verdict, ", ".join(document.facts))))
        yield Text(f"{verdict}.", _STYLES[document.level])
    shown = [each for each in document.sections if not (each.is_detail or each.is_folded)]
    for section in shown:
        if not section.code:
            yield from _section(section, spelled)
    for text in getattr(report, "warnings", ()):
        yield Text(f"WARNING: {spelled(text)}", "bold red")
    for text in getattr(report, "notices", ()):
        yield Text(f"Note: {spelled(text)}", "yellow")
    directory = getattr(report, "directory", None)
    if directory is not None:
        yield Text(f"Written to {directory}")
    for section in shown:
        if section.code:
            yield from _section(section, spelled)


def _section(section: Section, spelled: Callable[[str], str]) -> Iterator[RenderableType]:
    yield Text(f"\n{section.title}", "italic")
    if section.text:
        yield Text(spelled(section.text))
    if section.table is not None:
        yield _table(section.table)
    if section.code:
        lines = "\n".join(f"    {line}".rstrip() for line in section.code.splitlines())
        # A command is copied.
        yield Text(f"\n{lines}\n", no_wrap=True, overflow="ignore")


def _table(table: Table) -> rich.table.Table:
    """Return a table. Names and texts come from outside, and are no markup of rich."""
    shown = rich.table.Table(show_header=bool(table.columns))
    for name, form in table.formats:
        shown.add_column(Text(name), justify="right" if form else "left")
    for row in table.cells:
        shown.add_row(*(Text(cell.text, _STYLES[cell.level]) for cell in row))
    return shown
