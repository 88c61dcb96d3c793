"""Text data: a file, folder or data set of the hub → rows → the columns wanted → examples.

A row is its line number and its fields by column name; a plain line of text is the column `LINE`.
Rows are streamed; the examples are kept.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qdqbert.errors import DataFileError
from qdqbert.tasks.columns import LINE, Row, Table, is_header, quoted, resolve_columns
from qdqbert.tasks.columns import Columns as Columns
from qdqbert.tasks.folder import folder_rows
from qdqbert.tasks.hub import hub_rows, is_hub
from qdqbert.tasks.lines import existing_file, kind_of, load_json, read_lines

_GUESS_ALL = Columns()
_HEAD_ROWS = 20  # how many rows a guess may look at
_CSV_LIMIT_LOCK = threading.Lock()
_CSV_LIMIT = 2**31 - 1  # the largest that `csv` takes where a C long has 32 bits

_Record = tuple[int, list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts, none of them blank, and its label as the file writes it."""

    text: str
    text_pair: str | None = None
    label: str | None = None

    @property
    def content(self) -> tuple[str, ...]:
        """What a model is shown of it."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """The examples of one file, at least one, in its order: dataclasses with a `content`.

    Attributes:
        path: The file, as the caller named it.
        examples: Either all have a `text_pair` or none has. A blank label is `None`.
        columns: The columns that were read; all `None` where a line is a text.
        notices: Sentences on what was guessed or skipped, for the user to see.
    """

    path: str
    examples: tuple[Any, ...]
    columns: Columns
    notices: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 of the examples, see `digest_examples`."""
        return digest_examples(self.examples)

    def __len__(self) -> int:
        return len(self.examples)


def digest_examples(examples: Iterable[Any]) -> str:
    """Returns the SHA-256, in hex, of the examples in order, each one a line of JSON."""
    digest = hashlib.sha256()
    for example in examples:
        fields = list(dataclasses.asdict(example).values())
        digest.update(json.dumps(fields).encode("ascii") + b"\n")
    return digest.hexdigest()


def fingerprint(example: Any) -> str:
    """What tells whether two examples show a model the same; labels, case and spacing apart."""
    words = [" ".join(part.lower().split()) for part in example.content]
    return hashlib.sha256(json.dumps(words).encode("ascii")).hexdigest()[:16]


def read_dataset(
    path: str | Path, *, columns: Columns = _GUESS_ALL, max_examples: int | None = None
) -> Dataset:
    """Reads the examples of a .txt, .csv, .tsv, .jsonl or .ndjson file in UTF-8.

    A folder is read as `folder_rows` says, and `hub:NAME@SPLIT` as `hub_rows` does.
    The first row of a .csv or .tsv is its header where a cell is a requested name (numbers apart,
    as a label may look like one) or a known name. Rows with a blank text are skipped.

    Args:
        path: The file, whose suffix says how it is read, or the folder, or the hub name.
        columns: The columns to read; those left `None` are guessed.
        max_examples: How many examples to read from the top, at least 1; `None` for all.

    Raises:
        DataFileError: The data cannot be read, a column is not there or cannot be guessed, a row
            is malformed, no example is left, or `max_examples` is below 1.
        MissingExtraError: It is a hub name, and the library `datasets` is not installed.
    """
    if max_examples is not None and max_examples < 1:
        raise DataFileError(f"`max_examples` must be at least 1, got {max_examples}.")
    table = open_table(str(path), columns)
    resolved, notices = resolve_columns(table, columns) if table.names else (Columns(), [])
    examples = tuple(itertools.islice(_examples(table, resolved), max_examples))
    if not examples:
        raise DataFileError(
            f"File `{path}` holds no examples: expected at least one row with a text, got "
            f"{len(table.blank_lines)} blank ones. Add rows, or name another file or column."
        )
    notices = [*table.notices, *notices]
    for lines, what in (
        (table.blank_lines, "with a blank text: skipped"),
        (table.long_lines, "longer than the first row: the surplus fields were left out"),
    ):
        if lines:
            notices.append(f"{len(lines)} row(s) {what} (first at line {min(lines)}).")
    resolved = Columns() if resolved.text == LINE else resolved
    return Dataset(path=str(path), examples=examples, columns=resolved, notices=tuple(notices))


def _csv_records(path: Path) -> Iterator[_Record]:
    # strict: a quote that is never closed is an error, not a text that swallows the file.
    reader = csv.reader((text for _, text in read_lines(path)), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            # The limit, 131,072 characters, is a global of `csv`: it is raised for one record.
            with _CSV_LIMIT_LOCK:
                limit = csv.field_size_limit(_CSV_LIMIT)
                try:
                    cells = next(reader, None)
                finally:
                    csv.field_size_limit(limit)
        except csv.Error as error:
            raise DataFileError(
                f"The row at line {line} of `{path}` is no CSV: {error}. Put a field with a comma, "
                "quote or line end in quotes, and write each quote in it twice."
            ) from error
        if cells is None:
            return
        yield line, cells


def _tsv_records(path: Path) -> Iterator[_Record]:
    # As csv.QUOTE_NONE: in GLUE's files a quote is a character like any other.
    for line, text in read_lines(path):
        yield line, text.rstrip("\r\n").split("\t")


def _text_rows(path: Path) -> Iterator[Row]:
    for line, text in read_lines(path):
        yield line, {LINE: text.rstrip("\r\n")}


def _json_rows(path: Path) -> Iterator[Row]:
    for line, text in read_lines(path):
        value = load_json(text, path, line=line) if text.strip() else {}
        if not isinstance(value, dict | str):
            raise DataFileError(
                f"Line {line} of `{path}` must be a JSON object, or a string as all lines, got "
                f"{kind_of(value)}. Write one object a line."
            )
        yield line, value if isinstance(value, dict) else {LINE: value}


_RECORDS = {".csv": _csv_records, ".tsv": _tsv_records}
_ROWS = {".txt": _text_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}


def open_table(path: str, columns: Columns) -> Table:
    """Checks the path and reads the head of the data; no names where it has no rows."""
    table = _find_rows(path, columns)
    rows = _skip_blank(table.rows, table.blank_lines)
    table.head = list(itertools.islice(rows, _HEAD_ROWS))
    table.rows = itertools.chain(table.head, rows)
    if not table.names:
        table.names = list(dict.fromkeys(name for _, row in table.head for name in row))
    return table


def _find_rows(path: str, columns: Columns) -> Table:
    if is_hub(path):
        return Table(path=path, rows=hub_rows(path))
    file = Path(path)
    if file.is_dir():
        rows, notices = folder_rows(file)
        return Table(path=path, rows=rows, notices=notices)
    suffix = existing_file(path).suffix.lower()
    if suffix in _RECORDS:
        return _record_table(_RECORDS[suffix](file), path, columns)
    if suffix in _ROWS:
        return Table(path=path, rows=_ROWS[suffix](file))
    known = ", ".join(sorted(_RECORDS | _ROWS))
    raise DataFileError(
        f"File `{path}` must end in one of {known}, got {suffix!r}. Convert or rename it."
    )


def _skip_blank(rows: Iterator[Row], blank_lines: list[int]) -> Iterator[Row]:
    for line, row in rows:
        if any(value not in ("", None) for value in row.values()):
            yield line, row
        else:
            blank_lines.append(line)


def _record_table(records: Iterator[_Record], path: str, columns: Columns) -> Table:
    """Takes the names from the header, or numbers the columns where there is none."""
    table = Table(path=path, rows=iter(()))
    first = next((record for record in records if any(record[1])), None)
    if first is None:
        return table
    cells = [cell.strip() for cell in first[1]]
    if len(cells) == 1 and is_header(cells[0].split("\t")[1:], columns):
        raise DataFileError(
            f"Columns of `{path}` are parted by tabs, not by commas. Rename it to end in .tsv."
        )
    table.names = [str(i) for i in range(len(cells))]
    if is_header(cells, columns):
        # A cell that is empty, or a name for the second time, goes by its number.
        table.names = [c if c and c not in cells[:i] else str(i) for i, c in enumerate(cells)]
    else:
        records, table.first_cells = itertools.chain([first], records), cells
    table.rows = _named(records, table.names, table.long_lines)
    return table


def _named(records: Iterator[_Record], names: list[str], long_lines: list[int]) -> Iterator[Row]:
    for line, cells in records:
        if any(cells[len(names) :]):
            long_lines.append(line)
        yield line, dict(zip(names, cells, strict=False))


def _examples(table: Table, columns: Columns) -> Iterator[Example]:
    for line, row in table.rows:
        text, pair, label = (
            "" if name is None else _field(table.path, line, row, name, kinds)
            for name, kinds in (
                (columns.text, (str,)),
                (columns.text_pair, (str,)),
                (columns.label, (str, bool, int, float)),
            )
        )
        if text.strip() and (columns.text_pair is None or pair.strip()):
            yield Example(text=text, text_pair=pair or None, label=label or None)
        else:
            table.blank_lines.append(line)


def _field(path: str, line: int, row: dict[str, object], name: str, kinds: tuple[type, ...]) -> str:
    if name not in row:
        raise DataFileError(
            f"Line {line} of `{path}` must have a field for column {name!r}, got only "
            f"{quoted(row)}. Add the field, or remove the line."
        )
    value = row[name]
    if value is not None and not isinstance(value, kinds):
        raise DataFileError(
            f"Line {line} of `{path}` must have one of {', '.join(k.__name__ for k in kinds)} as "
            f"{name!r}, got {type(value).__name__}. Change the value, or name another column."
        )
    return "" if value is None else str(value)
