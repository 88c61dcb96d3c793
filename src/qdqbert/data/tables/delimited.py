"""Read and write .csv and .tsv files, whose first row usually has the names of the columns."""

from __future__ import annotations

import csv
import itertools
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qdqbert.common.errors import DataFileError
from qdqbert.data.tables.lines import Lines, bad_byte
from qdqbert.data.tables.rows import BadRow, Header, Layout, Row, to_json

_CSV_LIMIT_LOCK = threading.Lock()

# Longest field in characters. It bounds what an unclosed quote reads of a large file.
_LONGEST_FIELD = 1 << 24

# Characters for which a field of a .csv file needs quotes.
_SPECIAL = re.compile('[",\r\n]')

# A tab or a line end cannot be in a .tsv file, which has no quotes.
_TSV_SPACES = str.maketrans("\t\r\n", "   ")

# Separators of .csv files besides the comma, and their names in messages.
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}

# A quote starts a field only after a separator, and not in `5" disk`.
_FIELD_START = r"(?<![^,;\t|\r\n])"
_QUOTED = re.compile(_FIELD_START + '"(?:[^"]|"")*"')
_UNCLOSED = re.compile(_FIELD_START + '"')

_NAMED_SEPARATOR = re.compile('"?sep=(.)"?', flags=re.IGNORECASE)

# Names of the first column that pandas writes for the index of a table.
INDEX_NAMES = ("", "index", "Unnamed: 0", "__index_level_0__")

# Number of the first line, its cells or what is wrong with them, the end of the row, and the number
# of the last line.
_Record = tuple[int, list[str] | str, int, int]


def read_csv(lines: Lines, *, header: bool = True) -> Iterator[Header | Row | BadRow]:
    """Yield the columns and the rows of a .csv file.

    The header shows what separates the columns; see `separator_of`. Without one it is a comma. A
    line before it can name the separator; see `named_separator`.

    With `header`, the first row has the names of the columns. They are "0", "1" and so on
    otherwise.
    """
    records = _csv_records(lines, is_header_first=header)
    return _rows(lines, records, "commas" if header else None)


def read_tsv(lines: Lines, *, header: bool = True) -> Iterator[Header | Row | BadRow]:
    """Yield the columns and the rows of a .tsv file; see `read_csv`."""
    return _rows(lines, _tsv_records(lines), "tabs" if header else None)


def first_record(lines: Iterator[str]) -> list[str]:
    """Return the lines up to the end of the first row of CSV that is not blank.

    A field in quotes can have line ends.
    """
    found: list[str] = []
    length, is_open = 0, False
    for line in lines:
        found.append(line)
        length += len(line)
        rest = _QUOTED.sub("", f'"{line}' if is_open else line)
        is_open = _UNCLOSED.search(rest) is not None
        if length > _LONGEST_FIELD or (line.strip() and not is_open):
            break
    return found


def separator_of(header: str) -> str:
    """Return the separator of a .csv file, from its first row.

    A comma, or else what spreadsheets write where a comma is used in numbers, if only one such
    character occurs outside of quotes.
    """
    plain = _QUOTED.sub("", header)
    found = [each for each in SEPARATORS if each in plain]
    return found[0] if len(found) == 1 and "," not in plain else ","


def named_separator(line: str) -> str | None:
    """Return the separator that a line `sep=;` names, which Excel reads and writes, or `None`."""
    found = _NAMED_SEPARATOR.fullmatch(line.rstrip("\r\n"))
    return found and found[1]


def with_index_name(names: Sequence[str]) -> list[str]:
    """Return names of columns in which the first one has a name.

    pandas and R leave the name of the index, which comes first, empty.
    """
    if len(names) < 2 or names[0]:
        return list(names)
    return ["Unnamed: 0" if "index" in names else "index", *names[1:]]


def csv_records(lines: Iterable[str], separator: str) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the rows of CSV: number of the first line, and the cells or what is wrong with them."""
    # strict: an unclosed quote is an error, instead of a text that contains the rest of the file.
    reader = csv.reader(lines, delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            # The limit of 131,072 characters is a global of `csv`; it is raised for one record.
            with _CSV_LIMIT_LOCK:
                limit = csv.field_size_limit(_LONGEST_FIELD)
                try:
                    cells = next(reader, None)
                finally:
                    csv.field_size_limit(limit)
        except csv.Error as error:
            # After the reason, Python names arguments of functions.
            yield line, f"it is not CSV: {str(error).partition(' - ')[0]}"
            continue
        if cells is None:
            return
        yield line, cells


def tsv_cells(line: str) -> list[str]:
    """Return the cells of a line of a .tsv file. A quote is an ordinary character, as in GLUE's."""
    return line.rstrip("\r\n").split("\t")


def _csv_records(lines: Lines, *, is_header_first: bool) -> Iterator[_Record]:
    last = end = 0

    def texts() -> Iterator[str]:
        nonlocal last, end
        for last, text, end in lines:  # noqa: B007
            yield text

    found = texts()
    start = first_record(found)
    separator = separator_of("".join(start)) if is_header_first else ","
    named = named_separator(start[-1]) if start else None
    if named is not None:
        separator = named
        # A blank line in its place, so that rows keep their numbers.
        start[-1] = "\n"
    for line, cells in csv_records(itertools.chain(start, found), separator):
        if cells:
            yield line + lines.shift, cells, end, last


def _tsv_records(lines: Lines) -> Iterator[_Record]:
    for number, text, end in lines:
        if text.strip("\r\n"):
            yield number, tsv_cells(text), end, number


def _rows(
    lines: Lines, records: Iterator[_Record], header_separators: str | None
) -> Iterator[Header | Row | BadRow]:
    """Yield rows. The first record is the header, unless `header_separators` is `None`."""
    name = lines.name
    names: list[str] = []
    if header_separators is not None:
        first = next(records, None)
        if first is None:
            return
        names = _header(name, first[1], header_separators)
        yield Header(tuple(names))
        lines.jump()
    for number, cells, end, last in records:
        if not names and not isinstance(cells, str):
            names = [str(index) for index in range(len(cells))]
            lines.jump()
        known_by = "the header" if header_separators is not None else "the first row"
        reason = cells if isinstance(cells, str) else _problem(cells, names, known_by)
        if reason is not None:
            # An unclosed quote takes the lines after it, too.
            lost = last - number + 1 if isinstance(cells, str) else 1
            yield BadRow(name, number, reason, end, last, max(1, lost))
        else:
            yield Row(name, number, dict(zip(names, cells, strict=True)), end, last)


def _header(name: str, cells: list[str] | str, separators: str) -> list[str]:
    reason = cells if isinstance(cells, str) else bad_byte("".join(cells))
    if reason is not None:
        raise DataFileError(f"Line 1 of `{name}`: {reason}. The first row has to be the header.")
    names = with_index_name([cell.strip() for cell in cells])
    if len(set(names)) < len(names) or not all(names):
        raise DataFileError(
            f"Line 1 of `{name}` has to be the header: different names of columns with "
            f"{separators} between them, got {names!r:.200}. Add a header, or pass "
            "`header=False`."
        )
    return names


def _problem(cells: Sequence[str], names: Sequence[str], known_by: str) -> str | None:
    if len(cells) != len(names):
        fields = f"{len(cells)} field{'' if len(cells) == 1 else 's'}"
        return f"it has {fields}, and {known_by} has {len(names)}"
    return next((reason for cell in cells if (reason := bad_byte(cell)) is not None), None)


def write_csv(layout: Layout, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as lines of a .csv file."""
    return _csv_lines([_cell(row.get(name)) for name in layout.names] for row in rows)


def csv_header(layout: Layout) -> bytes:
    """Return the first line of a .csv file."""
    return _csv_lines([layout.names])


def write_tsv(layout: Layout, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as lines of a .tsv file. Tabs and line ends in values become spaces."""
    return _tsv_lines([_cell(row.get(name)) for name in layout.names] for row in rows)


def tsv_header(layout: Layout) -> bytes:
    """Return the first line of a .tsv file."""
    return _tsv_lines([layout.names])


def _csv_lines(rows: Iterable[Sequence[str]]) -> bytes:
    lines = (",".join(_csv_field(cell, is_alone=len(row) == 1) for cell in row) for row in rows)
    return b"".join(f"{line}\n".encode() for line in lines)


def _csv_field(cell: str, *, is_alone: bool) -> str:
    # `csv.writer` leaves a carriage return without quotes before Python 3.13, and its reader then
    # ends the row there. A row of one empty field would be a blank line.
    if _SPECIAL.search(cell) or (is_alone and not cell):
        doubled = cell.replace('"', '""') if '"' in cell else cell
        return f'"{doubled}"'
    return cell


def _tsv_lines(rows: Iterable[Sequence[str]]) -> bytes:
    lines = ("\t".join(cell.translate(_TSV_SPACES) for cell in row) for row in rows)
    return b"".join(f"{line}\n".encode() for line in lines)


def _cell(value: Any) -> str:
    """Return a value as the text of a cell: texts as they are, nothing for `None`, else JSON.

    Numbers that JSON does not have are "NaN", "inf" and "-inf", which programs read as numbers.
    """
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value if isinstance(value, str) else to_json(value)
