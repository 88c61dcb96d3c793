"""A report as HTML, which loads nothing and runs no script."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from qdqbert.evidence.reporting.document import Cell, HasDocument, Section, Table

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""
_MARKS = {"good": "✓ ", "doubtful": "! ", "bad": "✗ ", "plain": ""}
# Length of the axis of a drawing, in its own units.
_AXIS = 120
# Tables with more columns show a row as lines where there is little room.
_COLUMNS_IN_LITTLE_ROOM = 2
# Tables that compare more columns show a row as lines everywhere.
_COMPARED_COLUMNS = 7
# A space between a number and its unit, at which no line ends.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|x|dB|ms|MB)(?!\w))")


def page(report: HasDocument) -> str:
    """Return a report as a file for a browser."""
    title = _element("title", escape(report.document().title))
    body = _element("body", _element("main", *_parts(report)), style="qdqbert")
    return f"{_HEAD}{title}{_style()}</head>\n{body}</html>\n"


def fragment(report: HasDocument) -> str:
    """Return a report as a part of another page, such as a notebook."""
    return _style() + _element("div", *_parts(report), style="qdqbert")


@functools.cache
def _style() -> str:
    return _element("style", Path(__file__).with_name("page.css").read_text())


def _parts(report: HasDocument) -> Iterator[str]:
    document = report.document()
    yield _element("h1", _text(document.title))
    if document.summary:
        yield _element("p", _with_code(document.summary), style="summary")
    if document.verdict:
        facts = f": {', '.join(document.facts)}." if document.facts else "."
        verdict = f"{_MARKS[document.level]}<strong>{_text(document.verdict)}</strong>"
        yield _element("p", verdict, _text(facts), style=f"verdict {document.level}")
    yield _element("div", *(_tile(*each) for each in document.tiles), style="tiles")
    said = [(f"Warning: {each}", "warning") for each in getattr(report, "warnings", ())]
    said += [(each, "") for each in getattr(report, "notices", ())]
    if said:
        yield _element("h2", "Warnings and notes")
        messages = (_element("li", _with_code(each), style=style) for each, style in said)
        yield _element("ul", *messages, style="messages")
    yield from map(_section, document.sections)
    command = getattr(report, "command", None)
    if command is not None:
        yield _section(Section("Make it again", code=command))


def _tile(name: str, value: str, note: str) -> str:
    parts = (("name", name), ("value", value), ("note", note))
    shown = (_element("div", _text(text), style=style) for style, text in parts)
    return _element("div", *shown, style="tile")


def _section(section: Section) -> str:
    title = _element("h2", _text(section.title))
    parts = [_element("summary", title) if section.is_folded else title]
    if section.text:
        parts.append(_element("p", _with_code(section.text), style="text"))
    if section.table is not None:
        parts.append(_table(section.table))
    if section.code:
        parts.append(_element("pre", escape(section.code)))
    return _element("details" if section.is_folded else "section", *parts)


def _table(table: Table) -> str:
    names = [name for name, _ in table.formats]
    titles = (
        _element("th", _text(name), scope="col") if name else _element("td") for name in names
    )
    head = _element("thead", _element("tr", *titles)) if names else ""
    cells = table.cells
    columns = list(zip(*cells, strict=True))
    rows = (
        _element(
            "tr",
            *(
                _cell(
                    cell, names[index : index + 1], row if table.compares_rows else columns[index]
                )
                if index
                else _element("th", _text(cell.text), scope="row")
                for index, cell in enumerate(row)
            ),
        )
        for row in cells
    )
    is_wide = table.compares_rows and len(names) > _COMPARED_COLUMNS
    style = "stacks" if len(names) > _COLUMNS_IN_LITTLE_ROOM else ""
    shown = _element("table", head, _element("tbody", *rows), style=style)
    return _element("div", shown, style="scroll narrow" if is_wide else "scroll")


def _cell(cell: Cell, column: Sequence[str], compared: Sequence[Cell]) -> str:
    """Return a cell, with its number on the axis of the cells that it is compared with.

    `column` is the name of its column; empty if columns have no names.
    """
    style = "" if cell.level == "plain" else cell.level
    content = _text(cell.text) + _drawing(cell, compared)
    return _element("td", content, style=style, title="".join(column))


def _drawing(cell: Cell, compared: Sequence[Cell]) -> str:
    """Return a bar from 0, or a point with its interval. An end that is not finite is cut."""
    if cell.value is None:
        return ""
    numbers = [0.0]
    for each in compared:
        ends = [] if each.interval is None else [each.interval.low, each.interval.high]
        numbers += [x for x in (each.value, *ends) if x is not None and math.isfinite(x)]
    first, last = min(numbers), max(numbers)
    scale = _AXIS / ((last - first) or 1)

    def x(value: float) -> str:
        return f"{scale * (min(max(value, first), last) - first):.2f}"

    zero, point = x(0), x(cell.value)
    if cell.interval is None:
        mark = f'<line class="bar" x1="{zero}" x2="{point}" y1="5" y2="5"></line>'
    else:
        low, high = x(cell.interval.low), x(cell.interval.high)
        mark = (
            f'<line class="zero" x1="{zero}" x2="{zero}" y1="0" y2="10"></line>'
            f'<line class="interval" x1="{low}" x2="{high}" y1="5" y2="5"></line>'
            f'<circle class="point" cx="{point}" cy="5" r="3.5"></circle>'
        )
    # Marks at the ends of the axis are not cut.
    return f'<svg viewBox="-5 0 {_AXIS + 10} 10" aria-hidden="true">{mark}</svg>'


def _element(name: str, *parts: str, style: str = "", scope: str = "", title: str = "") -> str:
    """Return an element around parts that are HTML."""
    given = (("class", style), ("scope", scope), ("data-title", title))
    attributes = "".join(f' {key}="{escape(value)}"' for key, value in given if value)
    return f"<{name}{attributes}>{''.join(parts)}</{name}>\n"


def _text(text: str) -> str:
    """Return a text as HTML, in which numbers and their units stay on a line."""
    return escape(_UNIT.sub("\N{NO-BREAK SPACE}", text))


def _with_code(text: str) -> str:
    """Return a text as HTML. What stands between backticks is code."""
    parts = enumerate(_text(text).split("`"))
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in parts)
