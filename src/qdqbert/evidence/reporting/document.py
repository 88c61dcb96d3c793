"""The content of a report, which a terminal, a page and Markdown show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from qdqbert.common.files import name_of
from qdqbert.data.rows.lines import plural

if TYPE_CHECKING:
    from qdqbert.evidence.intervals import Interval

MEGABYTE = 1e6
"""Bytes of a megabyte, as sizes are shown."""

Level = Literal["good", "doubtful", "bad", "plain"]
"""Whether a model can be used. `plain`: the report does not judge it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell that is judged, or drawn on pages.

    Attributes:
        text: Its content.
        level: Whether it is good.
        value: Length of a bar; `None` if nothing is drawn.
        interval: Interval of the value. If there is one, both are drawn as a point on a line.
    """

    text: str
    level: Level = "plain"
    value: float | None = None
    interval: Interval | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        columns: Names of the columns, separated by bars. A format such as "{:.1f} ms" follows the
            name of a column of numbers. Empty if the first column names the rows well enough.
        rows: Cells and values. `None` is an empty cell. Lines of a text are kept.
        compares_rows: Whether a row is drawn on one axis, or a column.
    """

    columns: str
    rows: Sequence[Sequence[Any]]
    compares_rows: bool = False

    @property
    def formats(self) -> list[tuple[str, str]]:
        """Name and format of each column. The format of texts is empty."""
        parts = [each.partition("{") for each in self.columns.split("|")] if self.columns else []
        return [(name.strip(), (brace + rest).strip()) for name, brace, rest in parts]

    def without_empty_columns(self) -> Table:
        """Return the table without the columns that have a name and nothing else."""
        names = self.columns.split("|")
        kept = [i for i in range(len(names)) if any(row[i] is not None for row in self.rows)]
        rows = [[row[index] for index in kept] for row in self.rows]
        return dataclasses.replace(self, columns="|".join(names[i] for i in kept), rows=rows)

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows as text."""
        formats = [form for _, form in self.formats]
        padded = formats or [""] * max(map(len, self.rows), default=0)
        return [[*map(_cell, row, padded)] for row in self.rows]


def _cell(value: Any, form: str) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(text="" if value is None else (form or "{}").format(value))


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its title.
        text: Its description.
        table: A table.
        code: Lines of a program.
        is_detail: Whether only pages show it, and not terminals and model cards.
        is_folded: Whether it is a detail of which pages show only the title until it is opened.
    """

    title: str
    text: str = ""
    table: Table | None = None
    code: str = ""
    is_detail: bool = False
    is_folded: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """The content of a report.

    Attributes:
        title: Its title.
        summary: The call in a sentence or two.
        level: Whether the model can be used.
        verdict: The verdict, in a few words.
        facts: The numbers behind the verdict.
        tiles: Name, value and explanation of the most important numbers, on pages only.
        sections: Everything else.
    """

    title: str
    summary: str = ""
    level: Level = "plain"
    verdict: str = ""
    facts: Sequence[str] = ()
    tiles: Sequence[tuple[str, str, str]] = ()
    sections: Sequence[Section] = ()


class HasDocument(Protocol):
    """A report, as the writers see it. They also show its `warnings` and other common fields."""

    def document(self) -> Document:
        """Return the report as text and tables."""


def bar(value: float, form: str) -> Cell:
    """Return a number that pages draw as a bar."""
    return Cell(text=form.format(value), value=value if math.isfinite(value) else None)


def digits_of(values: Sequence[float], *, is_error: bool) -> str:
    """Return the format of values of a metric: with two decimals, as percentages have.

    Errors are in the unit of the labels, which can be small. They have three significant digits.
    """
    largest = max(map(abs, values), default=0.0)
    has_few = is_error and 0 < largest < 1 and math.isfinite(largest)
    return f".{2 - math.floor(math.log10(largest))}f" if has_few else ".2f"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 example", "2 examples"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def decibels(value: float) -> str:
    """Return an SQNR; "equal" if there is no noise."""
    return "equal" if value == math.inf else f"{value:.1f} dB"


def interval_text(interval: Interval, digits: str) -> str:
    """Return both ends of an interval: "(0.19 to 1.33)"."""
    return f"({interval.low:{digits}} to {interval.high:{digits}})"


def short_name(model: str) -> str:
    """Return the name of a model for a title: of an absolute path, the last two parts."""
    path = Path(model)
    if path.name in ("", ".."):
        # It has no name of its own.
        return name_of(path)
    return "/".join(path.parts[-2:]) if path.is_absolute() else model.removeprefix("./")


def span(values: Sequence[float], digits: str) -> str:
    """Return the smallest and the largest of some values: "1.8 to 2.4"; one, if they are equal."""
    ends = (f"{end:{digits}}" for end in (min(values), max(values)))
    return " to ".join(dict.fromkeys(ends))
