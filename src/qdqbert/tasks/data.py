"""Text data files: a file → rows → the columns that are wanted → examples.

A row is its line number and its fields by column name; a plain line of text is the column `_LINE`.
Rows are streamed; the examples are kept.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import math
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

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
_HEAD_ROWS = 20  # how many rows a guess may look at
_LINE = "<line>"
_CSV_LIMIT_LOCK = threading.Lock()
_CSV_LIMIT = 2**31 - 1  # the largest that `csv` takes where a C long has 32 bits

_Record = tuple[int, list[str]]
_Row = tuple[int, dict[str, object]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts, none of them blank, and its label as the file writes it."""

    text: str
    text_pair: str | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns to read: a name or, where no column has it as its name, a 0-based number.

    In a request `None` means "guess"; in an answer, that there is no such column.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """The examples of one file, at least one, in its order.

    Attributes:
        path: The file, as the caller named it.
        examples: Either all have a `text_pair` or none has. A blank label is `None`.
        columns: The columns that were read; all `None` where a line is a text.
        notices: Sentences on what was guessed or skipped, for the user to see.
    """

    path: str
    examples: tuple[Example, ...]
    columns: Columns
    notices: tuple[str, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 of the examples, see `digest_examples`."""
        return digest_examples(self.examples)


@dataclasses.dataclass(kw_only=True)
class _Table:
    """The rows of an open file; the lists of line numbers grow while they are read."""

    path: Path
    rows: Iterator[_Row]
    names: list[str] = dataclasses.field(default_factory=list)
    head: list[_Row] = dataclasses.field(default_factory=list)
    first_cells: list[str] | None = None  # the first row where it is no header, else None
    blank_lines: list[int] = dataclasses.field(default_factory=list)
    long_lines: list[int] = dataclasses.field(default_factory=list)


def digest_examples(examples: Iterable[Example]) -> str:
    """Returns the SHA-256, in hex, of the examples in order, each one a line of JSON."""
    digest = hashlib.sha256()
    for example in examples:
        fields = [example.text, example.text_pair, example.label]
        digest.update(json.dumps(fields).encode("ascii") + b"\n")
    return digest.hexdigest()


def read_dataset(
    path: str | Path, *, columns: Columns = Columns(), max_examples: int | None = None
) -> Dataset:
    """Reads the examples of a .txt, .csv, .tsv, .jsonl or .ndjson file in UTF-8.

    The first row of a .csv or .tsv is its header where a cell is a requested name (numbers apart,
    as a label may look like one) or a known name. Rows with a blank text are skipped.

    Args:
        path: The file; its suffix says how it is read.
        columns: The columns to read; those left `None` are guessed.
        max_examples: How many examples to read from the top, at least 1; `None` for all.

    Raises:
        DataFileError: The file cannot be read, a column is not there or cannot be guessed, a row
            is malformed, no example is left, or `max_examples` is below 1.
    """
    if max_examples is not None and max_examples < 1:
        raise DataFileError(f"`max_examples` must be at least 1, got {max_examples}.")
    table = _open_table(Path(path), columns)
    resolved, notices = _resolve(table, columns) if table.names else (Columns(), [])
    examples = tuple(itertools.islice(_examples(table, resolved), max_examples))
    if not examples:
        raise DataFileError(
            f"File `{path}` holds no examples: expected at least one row with a text, got "
            f"{len(table.blank_lines)} blank ones. Add rows, or name another file or column."
        )
    for lines, what in (
        (table.blank_lines, "with a blank text: skipped"),
        (table.long_lines, "longer than the first row: the surplus fields were left out"),
    ):
        if lines:
            notices.append(f"{len(lines)} row(s) {what} (first at line {min(lines)}).")
    resolved = Columns() if resolved.text == _LINE else resolved
    return Dataset(path=str(path), examples=examples, columns=resolved, notices=tuple(notices))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields number and text of each line, its end kept, a byte order mark left out."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                mark = 3 if number == 1 and raw.startswith(b"\xef\xbb\xbf") else 0
                yield number, raw[mark:].decode("utf-8")
                offset += len(raw)
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"File `{path}` must be UTF-8, got byte 0x{error.object[error.start]:02x} at position "
            f"{offset + mark + error.start} (line {number}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}. Name another file.") from error


def _csv_records(path: Path) -> Iterator[_Record]:
    # strict: a quote that is never closed is an error, not a text that swallows the file.
    reader = csv.reader((text for _, text in _lines(path)), strict=True)
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
    for line, text in _lines(path):
        yield line, text.rstrip("\r\n").split("\t")


def _text_rows(path: Path) -> Iterator[_Row]:
    for line, text in _lines(path):
        yield line, {_LINE: text.rstrip("\r\n")}


def _json_rows(path: Path) -> Iterator[_Row]:
    for line, text in _lines(path):
        if not text.strip():
            yield line, {}
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataFileError(
                f"Line {line} of `{path}` is not JSON: {error}. Write one object a line."
            ) from error
        if not isinstance(value, dict | str):
            raise DataFileError(
                f"Line {line} of `{path}` must be a JSON object, or a string as all lines, got "
                f"{type(value).__name__}. Write one object a line."
            )
        yield line, value if isinstance(value, dict) else {_LINE: value}


_RECORDS = {".csv": _csv_records, ".tsv": _tsv_records}
_ROWS = {".txt": _text_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}


def _open_table(path: Path, columns: Columns) -> _Table:
    """Checks the path and reads the head of the file; no names where it has no rows."""
    if not path.is_file():
        wrong = "is a directory, not a file" if path.is_dir() else "does not exist"
        raise DataFileError(f"Data file `{path}` {wrong}. Check the path.")
    suffix = path.suffix.lower()
    if suffix not in _RECORDS | _ROWS:
        known = ", ".join(sorted(_RECORDS | _ROWS))
        raise DataFileError(
            f"File `{path}` must end in one of {known}, got {suffix!r}. Convert or rename it."
        )
    if suffix in _RECORDS:
        table = _record_table(_RECORDS[suffix](path), path, columns)
    else:
        table = _Table(path=path, rows=_ROWS[suffix](path))
    rows = _skip_blank(table.rows, table.blank_lines)
    table.head = list(itertools.islice(rows, _HEAD_ROWS))
    table.rows = itertools.chain(table.head, rows)
    if suffix in _ROWS:
        table.names = list(dict.fromkeys(name for _, row in table.head for name in row))
    return table


def _skip_blank(rows: Iterator[_Row], blank_lines: list[int]) -> Iterator[_Row]:
    for line, row in rows:
        if any(value not in ("", None) for value in row.values()):
            yield line, row
        else:
            blank_lines.append(line)


def _record_table(records: Iterator[_Record], path: Path, columns: Columns) -> _Table:
    """Takes the names from the header, or numbers the columns where there is none."""
    table = _Table(path=path, rows=iter(()))
    first = next((record for record in records if any(record[1])), None)
    if first is None:
        return table
    cells = [cell.strip() for cell in first[1]]
    table.names = [str(i) for i in range(len(cells))]
    asked = {name for name in dataclasses.astuple(columns) if name and not name.isdecimal()}
    known = set(itertools.chain(*_KNOWN_NAMES.values()))
    if asked.intersection(cells) or known.intersection(cell.lower() for cell in cells):
        # A cell that is empty, or a name for the second time, goes by its number.
        table.names = [c if c and c not in cells[:i] else str(i) for i, c in enumerate(cells)]
    else:
        records, table.first_cells = itertools.chain([first], records), cells
    table.rows = _named(records, table.names, table.long_lines)
    return table


def _named(records: Iterator[_Record], names: list[str], long_lines: list[int]) -> Iterator[_Row]:
    for line, cells in records:
        if any(cells[len(names) :]):
            long_lines.append(line)
        yield line, dict(zip(names, cells, strict=False))


def _resolve(table: _Table, columns: Columns) -> tuple[Columns, list[str]]:
    """Finds the requested columns and guesses the others; returns notices on the guesses."""
    asked = {role: name for role, name in dataclasses.asdict(columns).items() if name is not None}
    if table.names == [_LINE]:
        for role, name in asked.items():
            raise DataFileError(
                f"File `{table.path}` has no columns, as each line is a text, got "
                f"`{_OPTIONS[role]} {name!r}`. Leave the option out."
            )
        return Columns(text=_LINE), []
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
            f"{_quoted(table.names)}. Pass `--text-column`."
        )
    if table.first_cells is None:
        return Columns(**found), _unread_texts(table, found)
    taken = ", ".join(f"column {name} as {role}" for role, name in found.items())
    return Columns(**found), [f"No header found; took {taken}."]


def _find(table: _Table, role: str, name: str) -> str:
    if name in table.names:
        return name
    if name.isdecimal() and int(name) < len(table.names):
        return table.names[int(name)]
    there = f"columns {_quoted(table.names)}"
    if table.first_cells is not None:
        there += f" (no header found in its first row: {_quoted(table.first_cells)})"
    raise DataFileError(
        f"`{_OPTIONS[role]} {name!r}` must be a column of `{table.path}`, got {there}. "
        "Name one of these columns."
    )


def _guess_by_name(table: _Table, found: dict[str, str]) -> dict[str, str]:
    free = {name.strip().lower(): name for name in table.names if name not in found.values()}
    guesses = {
        role: next((free[name] for name in known if name in free), None)
        for role, known in _KNOWN_NAMES.items()
    }
    return {role: name for role, name in (guesses | found).items() if name is not None}


def _guess_by_place(table: _Table, found: dict[str, str]) -> dict[str, str]:
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


def _unread_texts(table: _Table, found: dict[str, str]) -> list[str]:
    """Tells of a likely second text: QNLI, say, has its pair in `question` and `sentence`."""
    likely = {*_KNOWN_NAMES["text"], *_KNOWN_NAMES["text_pair"]}
    unread = [n for n in table.names if n.strip().lower() in likely and n not in found.values()]
    if not unread or "text_pair" in found:
        return []
    return [f"Read no pair, but {_quoted(unread)} may be a text too: see `--text-pair-column`."]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name if len(name) <= 40 else name[:39] + "…") for name in names)


def _examples(table: _Table, columns: Columns) -> Iterator[Example]:
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


def _field(
    path: Path, line: int, row: dict[str, object], name: str, kinds: tuple[type, ...]
) -> str:
    if name not in row:
        raise DataFileError(
            f"Line {line} of `{path}` must have a field for column {name!r}, got only "
            f"{_quoted(row)}. Add the field, or remove the line."
        )
    value = row[name]
    if value is not None and not isinstance(value, kinds):
        raise DataFileError(
            f"Line {line} of `{path}` must have one of {', '.join(k.__name__ for k in kinds)} as "
            f"{name!r}, got {type(value).__name__}. Change the value, or name another column."
        )
    return "" if value is None else str(value)
