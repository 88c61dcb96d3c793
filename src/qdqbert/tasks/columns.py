"""Which columns of a table are the text, its pair and the label: asked for, or guessed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

from qdqbert.errors import DataFileError

_KNOWN_NAMES = {  # guessed, the preferred ones first
    role: names.split()
    for role, names in {
        "text": "text sentence sentence1 sentence_1 question question1 premise query review "
        "content title body",
        "text_pair": "text_pair sentence2 sentence_2 question2 hypothesis passage document text2 "
        "context",
        "label": "label labels score similarity similarity_score gold_label class category target "
        "sentiment rating stars",
    }.items()
}
_OPTIONS = {"text": "--text-column", "text_pair": "--text-pair-column", "label": "--label-column"}
LINE = "<line>"

Row = tuple[int, dict[str, object]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns to read: a name or, where no column has it as its name, a 0-based number.

    In a request `None` means "guess"; in an answer, that there is no such column.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


@dataclasses.dataclass(kw_only=True)
class Table:
    """The rows of open data; the lists of line numbers grow while they are read."""

    path: str
    rows: Iterator[Row]
    names: list[str] = dataclasses.field(default_factory=list)
    head: list[Row] = dataclasses.field(default_factory=list)
    first_cells: list[str] | None = None  # the first row where it is no header, else None
    blank_lines: list[int] = dataclasses.field(default_factory=list)
    long_lines: list[int] = dataclasses.field(default_factory=list)
    notices: list[str] = dataclasses.field(default_factory=list)


def is_header(cells: Iterable[str], columns: Columns) -> bool:
    """Whether a first row names columns: one that is asked for (numbers apart), or a known one."""
    asked = {name for name in dataclasses.astuple(columns) if name and not name.isdecimal()}
    known = set(itertools.chain(*_KNOWN_NAMES.values()))
    return any(cell in asked or cell.lower() in known for cell in cells)


def resolve_columns(table: Table, columns: Columns) -> tuple[Columns, list[str]]:
    """Finds the requested columns and guesses the others; returns notices on the guesses."""
    asked = {role: name for role, name in dataclasses.asdict(columns).items() if name is not None}
    if table.names == [LINE]:
        for role, name in asked.items():
            raise DataFileError(
                f"File `{table.path}` has no columns, as each line is a text, got "
                f"`{_OPTIONS[role]} {name!r}`. Leave the option out."
            )
        return Columns(text=LINE), []
    found = {role: _find(table, role, name) for role, name in asked.items()}
    if len(set(found.values())) < len(found):
        options = " ".join(f"{_OPTIONS[role]} {name!r}" for role, name in asked.items())
        raise DataFileError(
            f"Each option must name another column of `{table.path}`, got `{options}`. Change one."
        )
    guess = _guess_by_name if table.first_cells is None else _guess_by_place
    found = guess(table, found)
    if "text" not in found:
        raise DataFileError(
            f"File `{table.path}` has no column with the name of a text, got columns "
            f"{quoted(table.names)}. Pass `--text-column`."
        )
    if table.first_cells is None:
        return Columns(**found), _unread_texts(table, found)
    taken = ", ".join(f"column {name} as {role}" for role, name in found.items())
    return Columns(**found), [f"No header found; took {taken}."]


def _find(table: Table, role: str, name: str) -> str:
    if name in table.names:
        return name
    if name.isdecimal() and int(name) < len(table.names):
        return table.names[int(name)]
    there = f"columns {quoted(table.names)}"
    if table.first_cells is not None:
        there += f" (no header found in its first row: {quoted(table.first_cells)})"
    raise DataFileError(
        f"`{_OPTIONS[role]} {name!r}` must be a column of `{table.path}`, got {there}. "
        "Name one of these columns."
    )


def _guess_by_name(table: Table, found: dict[str, str]) -> dict[str, str]:
    free = {name.strip().lower(): name for name in table.names if name not in found.values()}
    guesses = {
        role: next((free[name] for name in known if name in free), None)
        for role, known in _KNOWN_NAMES.items()
    }
    return {role: name for role, name in (guesses | found).items() if name is not None}


def _guess_by_place(table: Table, found: dict[str, str]) -> dict[str, str]:
    names, taken = table.names, set(found.values())
    numbers = [[_is_number(row.get(name)) for _, row in table.head] for name in names]
    guesses = {"text": names[0]}
    if len(names) >= 3 and 2 * sum(numbers[1]) < len(table.head):
        guesses["text_pair"] = names[1]
    if len(names) == 2 or (len(names) > 2 and all(numbers[-1])):
        guesses["label"] = names[-1]
    free = {role: name for role, name in guesses.items() if name not in taken}
    return {role: (free | found)[role] for role in _KNOWN_NAMES if role in free | found}


def _is_number(value: object) -> bool:
    try:
        return math.isfinite(float(str(value)))
    except ValueError:
        return False


def _unread_texts(table: Table, found: dict[str, str]) -> list[str]:
    """Tells of a likely second text: QNLI, say, has its pair in `question` and `sentence`."""
    likely = {*_KNOWN_NAMES["text"], *_KNOWN_NAMES["text_pair"]}
    unread = [n for n in table.names if n.strip().lower() in likely and n not in found.values()]
    if not unread or "text_pair" in found:
        return []
    return [f"Read no pair, but {quoted(unread)} may be a text too: see `--text-pair-column`."]


def quoted(names: Iterable[str]) -> str:
    """Names in quotes, the long ones cut."""
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)
