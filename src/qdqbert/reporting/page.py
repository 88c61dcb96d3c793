"""A report as HTML, which loads nothing and runs no script."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from qdqbert.reporting.document import Cell, Section, Table
from qdqbert.reporting.report import Report

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


def page(report: Report) -> str:
    """Return a report as a file for a browser."""
    title = _element("title", escape(report.document().title))
    body = _element("body", *_parts(report), style="qdqbert")
    return f"{_HEAD}{title}{_style()}</head>\n{body}</html>\n"


def fragment(report: Report) -> str:
    """Return a report as a part of another page, such as a notebook."""
    return _style() + _element("div", *_parts(report), style="qdqbert")


@functools.cache
def _style() -> str:
    return _element("style", Path(__file__).with_name("page.css").read_text())


def _parts(report: Report) -> Iterator[str]:
    document = report.document()
    yield _element("h1", escape(document.title))
    if document.summary:
        yield _element("p", _with_code(document.summary), style="summary")
    if document.verdict:
        facts = f": {', '.join(document.facts)}." if document.facts else "."
        verdict = f"{_MARKS[document.level]}<strong>{escape(document.verdict)}</strong>"
        yield _element("p", verdict, escape(facts), style=f"verdict {document.level}")
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
    shown = (_element("div", escape(text), style=style) for style, text in parts)
    return _element("div", *shown, style="tile")


def _section(section: Section) -> str:
    outer, title = ("details", "summary") if section.is_folded else ("section", "h2")
    parts = [_element(title, escape(section.title))]
    if section.text:
        parts.append(_element("p", _with_code(section.text), style="text"))
    if section.table is not None:
        parts.append(_element("div", _table(section.table), style="scroll"))
    if section.code:
        parts.append(_element("pre", escape(section.code)))
    return _element(outer, *parts)


def _table(table: Table) -> str:
    names = (_element("th", escape(name), scope="col") for name, _ in table.formats)
    head = _element("thead", _element("tr", *names)) if table.columns else ""
    cells = table.cells
    columns = list(zip(*cells, strict=True))
    rows = (
        _element(
            "tr",
            *(
                _cell(cell, index, row if table.compares_rows else columns[index])
                for index, cell in enumerate(row)
            ),
        )
        for row in cells
    )
    return _element("table", head, _element("tbody", *rows))


def _cell(cell: Cell, index: int, compared: Sequence[Cell]) -> str:
    """Return a cell, with its number on the axis of the cells that it is compared with."""
    name, scope = ("td", "") if index else ("th", "row")
    style = "" if cell.level == "plain" else cell.level
    content = escape(cell.text) + _drawing(cell, compared)
    return _element(name, content, style=style, scope=scope)


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


def _element(name: str, *parts: str, style: str = "", scope: str = "") -> str:
    """Return an element around parts that are HTML."""
    given = (("class", style), ("scope", scope))
    attributes = "".join(f' {key}="{value}"' for key, value in given if value)
    return f"<{name}{attributes}>{''.join(parts)}</{name}>\n"


def _with_code(text: str) -> str:
    """Return a text as HTML. What stands between backticks is code."""
    parts = enumerate(escape(text).split("`"))
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in parts)
