"""Text data: a file, folder, hub data set or object → rows → the requested columns → examples.

A row is its number and its fields by column name. In a file of plain lines, a row has the single
column `LINE`. Rows are streamed; the examples are kept in memory.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.errors import DataFileError, showing
from qdqbert.common.objects import Downloaded, GivenData, Rows
from qdqbert.data.rows.columns import LINE, Row, Table, is_header, quoted, resolve_columns
from qdqbert.data.rows.columns import Columns as Columns
from qdqbert.data.rows.folder import folder_rows
from qdqbert.data.rows.hub import hub_rows, is_hub, parse_hub
from qdqbert.data.rows.in_memory import open_rows
from qdqbert.data.rows.lines import (
    PARQUET,
    counted,
    existing_file,
    load_json,
    read_lines,
    read_records,
    row_name,
    source_name,
)
from qdqbert.data.tables.delimited import (
    SEPARATORS,
    csv_records,
    first_record,
    named_separator,
    separator_of,
    tsv_cells,
    with_index_name,
)
from qdqbert.data.tables.lines import kind_of

_INFER_ALL = Columns()

# Number of rows that columns are inferred from.
_HEAD_ROWS = 20

# Length in characters of a line that is more than a text, if it is the only one.
_LONG_LINE = 10_000

# Number of rows, the first one included, that show what separates the columns without a header.
_FEWEST_ROWS = 3

_Record = tuple[int, list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts.

    Attributes:
        text: The first or only text; not blank.
        text_pair: The second text; not blank, `None` if there is none.
        label: The label as the file writes it, a list as JSON; `None` if it is blank or there is
            none.
        row: Number of the row. Not compared.
    """

    text: str
    text_pair: str | None = None
    label: str | None = None
    row: int = dataclasses.field(default=0, compare=False)

    @property
    def content(self) -> tuple[str, ...]:
        """The texts that a model reads."""
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The label without spaces around it; `None` if it is blank or there is none."""
        label = (self.label or "").strip()
        return (label,) if label else None

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not `None`, by their names."""
        fields = {"text": self.text, "text_pair": self.text_pair, "label": self.label}
        found = {name: each for name, each in fields.items() if each is not None}
        return {"row": self.row, **found}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """The examples of a file, folder, hub data set or object, at least one, in its order.

    Attributes:
        path: The path, as the caller gave it, or what stands for rows in memory.
        examples: Dataclasses with a `content` and `labels`. Either all have a `text_pair` or none
            has.
        columns: The columns that were read; all `None` if each line is a text.
        names: Names of all columns, where there are some.
        notices: Sentences for the user about what was inferred or skipped.
    """

    path: str
    examples: tuple[Any, ...]
    columns: Columns
    notices: tuple[str, ...]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def has_labels(self) -> bool:
        """Whether there is a column of labels, or an example has one, in any layout."""
        return self.columns.label is not None or any(
            each.labels is not None for each in self.examples
        )


def digest_examples(examples: Iterable[Any]) -> str:
    """Return the SHA-256, in hex, of the examples in order, each written as a line of JSON."""
    digest = hashlib.sha256()
    for example in examples:
        content = dataclasses.asdict(example)
        fields = [content[each.name] for each in dataclasses.fields(example) if each.compare]
        digest.update(json.dumps(fields).encode("ascii") + b"\n")
    return digest.hexdigest()


def fingerprint(example: Any) -> str:
    """Return a hash that is equal for examples with equal texts, ignoring case and spacing."""
    words = [" ".join(part.lower().split()) for part in example.content]
    return hashlib.sha256(json.dumps(words).encode("ascii")).hexdigest()[:16]


def without_rows(examples: Iterable[Any], known: Collection[str]) -> list[Any]:
    """Return the examples whose fingerprints are not known, nor that of another of their query."""
    if not known:
        return list(examples)
    kept, seen = [], set()
    for each in examples:
        if fingerprint(each) not in known:
            kept.append(each)
        elif hasattr(each, "group"):
            seen.add(each.group)
    return [each for each in kept if getattr(each, "group", None) not in seen]


def check_each(dataset: Dataset, check: Callable[[Any], object]) -> None:
    """Call `check` on each example, and add its file, row and column to the error."""
    column = dataset.columns.label
    for example in dataset.examples:
        try:
            check(example)
        except DataFileError as error:
            where = row_name(dataset.path, example.row)
            where += "" if column is None else f", column {column!r}"
            raise DataFileError(f"{where}: {error}", argument=error.argument) from error


def labels_place(dataset: Dataset) -> str:
    """Return how messages refer to all labels of a data set."""
    column = dataset.columns.label
    return f"`{dataset.path}`{'' if column is None else f', column {column!r}'}"


def refuse_columns(columns: Columns, *, layout: str) -> None:
    """Raise `DataFileError` if a column is requested of data whose columns have fixed names."""
    for argument, name in columns.requested.items():
        raise DataFileError(
            f"`{argument}={name!r}` cannot be used for this task, whose data have fixed column "
            f"names: {layout}. Leave the option out.",
            argument=argument,
        )


def read_dataset(
    data: str | Path | Rows, *, columns: Columns = _INFER_ALL, max_examples: int | None = None
) -> Dataset:
    """Read the examples of a .txt, .csv, .tsv, .jsonl, .ndjson or .parquet file.

    A folder is read as by `folder_rows`, `hub:NAME@SPLIT` as by `hub_rows`, and rows in memory as
    by `open_rows`. The first row of a
    .csv or .tsv file is its header if a cell is a requested name (numbers do not count, because a
    label can look the same) or a known name. Rows with a blank text are skipped.

    Args:
        data: The file, whose suffix decides how it is read, the folder, the hub name, or the rows.
        columns: The columns to read; those that are `None` are inferred.
        max_examples: Number of examples to read from the top, at least 1; `None` for all.

    Raises:
        DataFileError: The data cannot be read, a column does not exist or cannot be inferred, a
            row is malformed, or no example is left.
        MissingExtraError: `data` is a hub name, and the library `datasets` is not installed.
    """
    data = str(data) if isinstance(data, Path) else data
    return read_table(open_table(data, columns), columns, max_examples=max_examples)


def read_data(
    read: Callable[..., Dataset],
    data: GivenData,
    columns: Columns = _INFER_ALL,
    max_examples: int | None = None,
) -> Dataset:
    """Read data with the function of a task. Of a copy, errors and notices have the name.

    Raises:
        DataFileError: As the function.
    """
    if not isinstance(data, Downloaded):
        return read(data, columns=columns, max_examples=max_examples)
    with showing(data.name, Path(data)):
        found = read(data.folder, columns=columns, max_examples=max_examples)
    notices = tuple(each.replace(data.folder, data.name) for each in found.notices)
    return dataclasses.replace(found, path=data.name, notices=notices)


def check_readable(data: GivenData, columns: Columns) -> None:
    """Check that data exist, that they start in UTF-8, and that they have the requested columns.

    Raises:
        DataFileError: One of these is not so.
    """
    has_columns = isinstance(data, Rows)
    if isinstance(data, Downloaded):
        # Errors of the call name the URL.
        data = data.folder
    if isinstance(data, str):
        if is_hub(data):
            parse_hub(data)
            return
        if Path(data).is_dir():
            return
        file = existing_file(data)
        suffix = file.suffix.lower()
        if suffix != PARQUET:
            for _ in itertools.islice(read_lines(file), _HEAD_ROWS):
                pass
        has_columns = suffix in (*_RECORDS, *_ROWS)
    if columns.requested and has_columns:
        table = open_table(data, columns)
        if table.names:
            resolve_columns(table, columns)


def read_table(table: Table, columns: Columns, *, max_examples: int | None = None) -> Dataset:
    """Read the examples of an open table; see `read_dataset`."""
    path = table.path
    resolved, notices = resolve_columns(table, columns) if table.names else (Columns(), [])
    examples = tuple(itertools.islice(_examples(table, resolved), max_examples))
    if not examples:
        raise DataFileError(
            f"{source_name(path)} contains no examples: expected at least one row with a text, got "
            f"{counted(len(table.blank_lines), 'blank row')}. Add rows, or name another file or "
            "column."
        )
    notices = [*table.notices, *notices]
    for lines, kind, consequence in (
        (table.blank_lines, "with a blank text", "skipped"),
        (table.long_lines, "longer than the first row", "the surplus fields were left out"),
    ):
        if lines:
            rows = f"{counted(len(lines), 'row')} {kind}"
            notices.append(f"{rows}: {consequence} (first at line {min(lines)}).")
    if resolved.text == LINE:
        notices += _single_line(path, examples)
        return Dataset(path=path, examples=examples, columns=Columns(), notices=tuple(notices))
    return Dataset(
        path=path,
        examples=examples,
        columns=resolved,
        notices=tuple(notices),
        names=tuple(table.names),
    )


def _single_line(path: str, examples: Sequence[Example]) -> list[str]:
    """Return a notice on a file that is one long line, which is one text."""
    length = len(examples[0].text)
    if len(examples) > 1 or length < _LONG_LINE or not Path(path).is_file():
        return []
    return [
        f"File `{path}` is one line of {length:,} characters, and so one text. Write one text per "
        "line."
    ]


def _csv_records(path: str, lines: Iterable[str], separator: str) -> Iterator[_Record]:
    for line, cells in csv_records(lines, separator):
        if isinstance(cells, str):
            raise DataFileError(
                f"Line {line} of `{path}`: {cells}. Put a field with a separator, quote or line "
                "end in quotes, and write each quote in it twice."
            )
        yield line, cells


def _csv_table(path: str, columns: Columns) -> Table:
    lines = (text for _, text in read_lines(Path(path)))
    start = first_record(lines)
    named = named_separator(start[-1]) if start else None
    if named is not None:
        # A blank line in its place, so that rows keep their numbers.
        start[-1] = "\n"
    head = [*start, *itertools.islice(lines, _HEAD_ROWS)]
    separator = named or _separator("".join(start), head, columns)
    records = _csv_records(path, itertools.chain(head, lines), separator)
    table = _record_table(records, path, columns)
    if separator != ",":
        table.notices.append(
            f"Read columns separated by {SEPARATORS.get(separator, repr(separator))}."
        )
    return table


def _separator(first_row: str, head: Sequence[str], columns: Columns) -> str:
    """Return the separator of a .csv file, from its first row and lines; see `separator_of`.

    Lines of text can contain it too. So it counts only below a header, or if the first rows have
    equally many columns.
    """
    found = separator_of(first_row)
    if found == ",":
        return found
    with contextlib.suppress(csv.Error):
        parsed = csv.reader(head, delimiter=found)
        rows = (row for row in parsed if any(cell.strip() for cell in row))
        first = next(rows)
        if is_header([cell.strip() for cell in first], columns):
            return found
        if len(head) >= _FEWEST_ROWS and all(len(row) == len(first) for row in rows):
            return found
    return ","


def _tsv_records(path: Path) -> Iterator[_Record]:
    for line, text in read_lines(path):
        yield line, tsv_cells(text)


def _text_rows(path: Path) -> Iterator[Row]:
    for line, text in read_lines(path):
        yield line, {LINE: text.rstrip("\r\n")}


def _json_rows(path: Path) -> Iterator[Row]:
    for line, text in read_lines(path):
        value = load_json(text, path, line=line) if text.strip() else {}
        if not isinstance(value, dict | str):
            raise DataFileError(
                f"Line {line} of `{path}`: it must be a JSON object or a string, got "
                f"{kind_of(value)}. Correct the row."
            )
        yield line, value if isinstance(value, dict) else {LINE: value}


_RECORDS = (".csv", ".tsv")
_ROWS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".txt": _text_rows,
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    PARQUET: lambda path: read_records(str(path)),
}


def open_table(data: str | Rows, columns: Columns) -> Table:
    """Open the data and read its first rows. `Table.names` is empty if there are no rows."""
    table = open_rows(data, columns) if isinstance(data, Rows) else _find_rows(data, columns)
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
    if suffix == ".tsv":
        return _record_table(_tsv_records(file), path, columns)
    if suffix == ".csv":
        return _csv_table(path, columns)
    if suffix in _ROWS:
        return Table(path=path, rows=_ROWS[suffix](file))
    known = ", ".join(sorted((*_RECORDS, *_ROWS)))
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
    """Take the column names from the header, or number the columns if there is none."""
    table = Table(path=path, rows=iter(()))
    first = next((record for record in records if any(record[1])), None)
    if first is None:
        return table
    cells = [cell.strip() for cell in first[1]]
    if len(cells) == 1 and path.lower().endswith(".tsv"):
        separator = separator_of(cells[0])
        if separator in cells[0] and is_header(cells[0].split(separator)[1:], columns):
            raise DataFileError(
                f"The columns of `{path}` are separated by {separator!r}, expected tabs. "
                f"Rename the file to end in .csv."
            )
    table.names = [str(i) for i in range(len(cells))]
    if is_header(cells, columns):
        cells = with_index_name(cells)
        numbers: dict[str, list[str]] = {}
        for i, cell in enumerate(cells):
            numbers.setdefault(cell, []).append(str(i))
        table.repeated = {cell: each for cell, each in numbers.items() if cell and len(each) > 1}
        # The number is the name of a column whose cell is empty, or the name of others as well.
        table.names = [c if c and c not in table.repeated else str(i) for i, c in enumerate(cells)]
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
                (columns.label, (str, bool, int, float, list)),
            )
        )
        if text.strip() and (columns.text_pair is None or pair.strip()):
            yield Example(text=text, text_pair=pair or None, label=label or None, row=line)
        else:
            table.blank_lines.append(line)


def _field(path: str, line: int, row: dict[str, object], name: str, kinds: tuple[type, ...]) -> str:
    if name not in row:
        raise DataFileError(
            f"{row_name(path, line)} must have a field for column {name!r}, got only "
            f"{quoted(row)}. Add the field, or remove the row."
        )
    value = row[name]
    if value is not None and not isinstance(value, kinds):
        raise DataFileError(
            f"{row_name(path, line)} must have a value of type "
            f"{' or '.join(kind.__name__ for kind in kinds)} as {name!r}, got "
            f"{type(value).__name__}. Change the value, or name another column."
        )
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
