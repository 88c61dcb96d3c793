"""Find the columns of a table that hold the text, its pair and the label."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from qdqbert.common.errors import DataFileError
from qdqbert.common.options.columns import Columns as Columns
from qdqbert.data.rows.lines import source_name
from qdqbert.data.tables.delimited import INDEX_NAMES

# Column names that are recognized without being requested, the preferred ones first.
_KNOWN_NAMES = {
    role: names.split()
    for role, names in {
        "text": "text sentence sentence1 sentence_1 question question1 premise query review "
        "content title body anchor",
        "text_pair": "text_pair sentence2 sentence_2 question2 hypothesis passage document text2 "
        "context",
        "label": "label labels score similarity similarity_score gold_label class category target "
        "relevance sentiment rating stars",
    }.items()
}

# Name of the single column of a file whose lines are texts.
LINE = "<line>"

Row = tuple[int, dict[str, object]]
"""Number of a row and its fields by column name."""


@dataclasses.dataclass(kw_only=True)
class Table:
    """The rows of an open file, folder or data set.

    Attributes:
        path: The path, as the caller gave it.
        rows: The rows that are still to be read.
        repeated: Names that several columns have, and the numbers that are their names instead.
        head: The first rows, which also come first in `rows`.
        first_cells: Cells of the first row if it is not a header, else `None`.
        blank_lines: Numbers of the blank rows; grows while rows are read.
        long_lines: Numbers of the rows with too many fields; grows while rows are read.
    """

    path: str
    rows: Iterator[Row]
    names: list[str] = dataclasses.field(default_factory=list)
    repeated: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    head: list[Row] = dataclasses.field(default_factory=list)
    first_cells: list[str] | None = None
    blank_lines: list[int] = dataclasses.field(default_factory=list)
    long_lines: list[int] = dataclasses.field(default_factory=list)
    notices: list[str] = dataclasses.field(default_factory=list)


def check_names(names: Iterable[object], path: str) -> None:
    """Refuse names of columns that are not texts, such as numbers and tuples of a MultiIndex."""
    odd = next((name for name in names if not isinstance(name, str)), None)
    if odd is not None:
        raise DataFileError(
            f"Names of columns have to be texts, and `{path}` has {odd!r}. Rename it."
        )


def is_header(cells: Sequence[str], columns: Columns) -> bool:
    """Return whether a first row is a header: a cell is a requested or a known column name.

    Requested numbers do not count, because a label can look the same. Without a known name, the
    first cell can be what pandas writes above the index of a table.
    """
    if len(cells) > 1 and cells[0] in INDEX_NAMES and len(set(cells)) == len(cells):
        return True
    requested = {name for name in columns.requested.values() if name and not name.isdecimal()}
    known = set(itertools.chain(*_KNOWN_NAMES.values()))
    return any(cell in requested or cell.lower() in known for cell in cells)


def resolve_columns(table: Table, columns: Columns) -> tuple[Columns, list[str]]:
    """Find the requested columns and infer the rest.

    Returns:
        The columns, and notices about those that were inferred.

    Raises:
        DataFileError: A requested column does not exist, two requests name the same column, or
            no column of texts is found.
    """
    requested = columns.requested
    if table.names == [LINE]:
        for argument, name in requested.items():
            raise DataFileError(
                f"{source_name(table.path)} has no columns, because each row is one text, got "
                f"`{argument}={name!r}`. Leave the option out.",
                argument=argument,
            )
        return Columns(text=LINE), []
    found = {
        argument.removesuffix("_column"): _find(table, argument, name)
        for argument, name in requested.items()
    }
    if len(set(found.values())) < len(found):
        options = ", ".join(f"`{argument}={name!r}`" for argument, name in requested.items())
        raise DataFileError(
            f"Each option must name a different column of `{table.path}`, got {options}. Change "
            "one of them."
        )
    infer = _infer_by_name if table.first_cells is None else _infer_by_position
    found = infer(table, found)
    if "text" not in found:
        raise DataFileError(
            f"{source_name(table.path)} has no column whose name is known to hold texts, got "
            f"columns {quoted(table.names)}. {_text_hint(table, found.values())}",
            argument="text_column",
        )
    if table.first_cells is None:
        return Columns(**found), _unread_texts(table, found)
    taken = ", ".join(f"column {name} as {role}" for role, name in found.items())
    return Columns(**found), [f"No header found; took {taken}."]


def _text_hint(table: Table, taken: Iterable[str]) -> str:
    """Return which column to pass: the one with the longest texts, if some look like texts."""
    lengths = {
        name: sum(len(each) for _, row in table.head if isinstance(each := row.get(name), str))
        for name in table.names
        if name not in (*taken, *INDEX_NAMES)
        and not all(is_number(row.get(name)) for _, row in table.head)
    }
    longest = max(lengths, key=lengths.__getitem__, default=None)
    if longest is None or not lengths[longest]:
        return "Pass `text_column`."
    return f"{longest!r} has the longest texts: pass `text_column={longest!r}` if these are meant."


def _find(table: Table, argument: str, name: str) -> str:
    found = name
    if name not in table.names and name.isdecimal() and int(name) < len(table.names):
        found = table.names[int(name)]
    if found in table.repeated or table.names.count(found) > 1:
        raise _ambiguous(table, argument, [found, found])
    if found in table.names:
        return found
    present = f"columns {quoted(table.names)}"
    if table.first_cells is not None:
        present += f" (no header found in its first row: {quoted(table.first_cells)})"
    raise DataFileError(
        f"`{argument}={name!r}` must be a column of `{table.path}`, got {present}. "
        "Name one of these columns.",
        argument=argument,
    )


def _infer_by_name(table: Table, found: dict[str, str]) -> dict[str, str]:
    shown = {number: name for name, numbers in table.repeated.items() for number in numbers}
    # Columns by their names in small letters.
    free: dict[str, list[str]] = {}
    for column in table.names:
        if column not in found.values():
            free.setdefault(shown.get(column, column).strip().lower(), []).append(column)
    inferred = {}
    for role, known in _KNOWN_NAMES.items():
        name = next((each for each in known if each in free), None)
        if name is None or role in found:
            continue
        # The name as it is known wins over other cases of its letters.
        meant = [each for each in free[name] if shown.get(each, each) == name] or free[name]
        if len(meant) > 1:
            raise _ambiguous(table, f"{role}_column", [shown.get(each, each) for each in meant])
        inferred[role] = meant[0]
    both = inferred | found
    return {role: both[role] for role in _KNOWN_NAMES if role in both}


def _ambiguous(table: Table, argument: str, names: Sequence[str]) -> DataFileError:
    """Return the error about columns that could all be meant."""
    return DataFileError(
        f"{source_name(table.path)} has the columns {' and '.join(map(repr, names))}, and each of "
        f"them could be meant. Rename one, or pass the number of one, from 0, as `{argument}`.",
        argument=argument,
    )


def _infer_by_position(table: Table, found: dict[str, str]) -> dict[str, str]:
    """Infer columns without a header: text, then a pair that is not numeric, and a label last."""
    names, taken = table.names, set(found.values())
    are_numbers = [[is_number(row.get(name)) for _, row in table.head] for name in names]
    inferred = {"text": names[0]}
    if len(names) >= 3 and 2 * sum(are_numbers[1]) < len(table.head):
        inferred["text_pair"] = names[1]
    if len(names) == 2 or (len(names) > 2 and all(are_numbers[-1])):
        inferred["label"] = names[-1]
    free = {role: name for role, name in inferred.items() if name not in taken}
    return {role: (free | found)[role] for role in _KNOWN_NAMES if role in free | found}


def is_number(value: object) -> bool:
    """Return whether a value is a finite number or the text of one."""
    try:
        return math.isfinite(float(str(value)))
    except ValueError:
        return False


def _unread_texts(table: Table, found: dict[str, str]) -> list[str]:
    """Return a notice on a column that may be a second text, as `sentence` of QNLI is."""
    likely = {*_KNOWN_NAMES["text"], *_KNOWN_NAMES["text_pair"]}
    unread = [n for n in table.names if n.strip().lower() in likely and n not in found.values()]
    if not unread or "text_pair" in found:
        return []
    return [
        f"Read one text per row; {quoted(unread)} may hold a second one: see `text_pair_column`."
    ]


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas, each cut at 40 characters."""
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)
