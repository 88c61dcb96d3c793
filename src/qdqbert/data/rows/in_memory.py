"""Rows of data in memory: lists of texts, tuples or dicts, DataFrames and data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.errors import DataFileError
from qdqbert.common.json_files import repeated
from qdqbert.common.objects import Rows
from qdqbert.data.rows.columns import LINE, Columns, Row, Table, check_names
from qdqbert.data.rows.hub import hub_rows, is_hub, named_rows
from qdqbert.data.rows.lines import read_records, row_name
from qdqbert.data.tables.lines import kind_of

# Number of rows of a DataFrame that are converted at a time.
_CHUNK = 1000


def records(data: str | Rows) -> Iterator[Row]:
    """Yield the rows of data whose columns have names: a file, a hub data set or an object.

    Raises:
        DataFileError: The data cannot be read, or a row is not a dict.
        MissingExtraError: `data` is a hub name, and the library `datasets` is not installed.
    """
    if isinstance(data, Rows):
        return _records_in_memory(data)
    return hub_rows(data) if is_hub(data) else read_records(data)


def _records_in_memory(data: Rows) -> Iterator[Row]:
    """Yield the rows of data whose columns have names, each with its number from 1.

    Values that pandas has for missing ones become `None`, tuples and arrays become lists, and
    numbers of classes in a data set their names.
    """
    for number, row in _numbered(data):
        if not isinstance(row, Mapping):
            raise DataFileError(
                f"{row_name(str(data), number)} must be a dict of columns for this task, got "
                f"{kind_of(row)}. Pass a list of dicts, a DataFrame or a data set."
            )
        yield number, _fields(row, str(data), number)


def open_rows(data: Rows, columns: Columns) -> Table:
    """Return the rows of data as a table.

    The items of a tuple are a text, a second text if it is a string, and a label.

    Rows are all texts, all tuples or lists, or all dicts.

    Raises:
        DataFileError: The first row is of another kind. A later one raises when it is read.
    """
    path, rows = str(data), _numbered(data)
    first: Any = next((row for _, row in _numbered(data) if row is not None), {})
    if isinstance(first, str):
        _check_not_file(first, path)
        return Table(path=path, rows=_texts(rows, path))
    if isinstance(first, Mapping):
        return Table(path=path, rows=_records_in_memory(data))
    if not isinstance(first, Sequence):
        raise DataFileError(
            f"{row_name(path, 1)} must be a text, a tuple of texts or a dict of columns, got "
            f"{kind_of(first)}. Convert it."
        )
    names = _names_of(first, path)
    table = Table(path=path, rows=_tuples(rows, names, path), names=names)
    if names == ["text", "text_pair"] and columns.label is None:
        table.notices.append(
            "Read rows of two texts as pairs of texts. Pass `label_column=1` if the second is a "
            "label."
        )
    return table


def _numbered(data: Rows) -> Iterator[tuple[int, Any]]:
    """Return an iterator over the rows as the user gave them, with their numbers."""
    values = data.values
    if data.kind == "dataset":
        return named_rows(values.with_format(None))
    if data.kind == "polars":
        return enumerate(values.iter_rows(named=True), start=1)
    if data.kind == "pandas":
        return enumerate(_pandas_rows(values, str(data)), start=1)
    return enumerate(values.tolist() if hasattr(values, "tolist") else values, start=1)


def _pandas_rows(values: Any, path: str) -> Iterator[Any]:
    """Yield the rows of a DataFrame as dicts, or the values of a Series, `None` if missing."""
    is_frame = hasattr(values, "columns")
    if is_frame and not values.columns.is_unique:
        repeated = values.columns[values.columns.duplicated()][0]
        raise DataFileError(
            f"Each column of `{path}` must have a name of its own, got {repeated!r} twice. Rename "
            "one of them."
        )
    for start in range(0, len(values), _CHUNK):
        part = values.iloc[start : start + _CHUNK]
        part = part.astype(object).where(part.notna(), None)
        yield from part.to_dict("records") if is_frame else part


def _check_not_file(text: str, path: str) -> None:
    """Refuse names of files in a list, which would be read as texts."""
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):
        return
    if is_file:
        raise DataFileError(
            f"{row_name(path, 1)} must be a text, got the name of a file, {text!r}. Pass one file, "
            "by its name, or the texts in it."
        )


def _names_of(row: Sequence[Any], path: str) -> list[str]:
    """Return the names of a tuple's items by the first row."""
    has_pair = len(row) > 1 and isinstance(row[1], str)
    names = ["text", "text_pair", "label"] if has_pair else ["text", "label"]
    if not 0 < len(row) <= len(names):
        raise DataFileError(
            f"{row_name(path, 1)} must have a text, at most one other text and a label, got "
            f"{len(row)} items. Pass a list of dicts."
        )
    return names[: len(row)]


def _texts(rows: Iterator[tuple[int, Any]], path: str) -> Iterator[Row]:
    for number, text in rows:
        if not isinstance(text, str) and _plain(text) is not None:
            raise DataFileError(
                f"{row_name(path, number)} must be a text like the first row, got {kind_of(text)}. "
                "Change the row."
            )
        yield number, _fields({LINE: text}, path, number)


def _tuples(rows: Iterator[tuple[int, Any]], names: list[str], path: str) -> Iterator[Row]:
    for number, row in rows:
        is_like_first = isinstance(row, Sequence) and not isinstance(row, str)
        if row is not None and not (is_like_first and len(row) == len(names)):
            got = f"{len(row)} items" if is_like_first else kind_of(row)
            raise DataFileError(
                f"{row_name(path, number)} must have {len(names)} items like the first row, got "
                f"{got}. Change the row."
            )
        yield number, _fields(dict(zip(names, row or (), strict=False)), path, number)


def _fields(row: Mapping[Any, Any], path: str, number: int) -> dict[str, object]:
    """Return the fields of a row as plain values.

    Columns without names have numbers, as in a DataFrame without a header.

    Raises:
        DataFileError: A name is neither a text nor a number, two names are equal as texts, or a
            text has half of a surrogate pair.
    """
    names = [str(name) if isinstance(name, int) else name for name in row]
    check_names(names, path)
    if len(set(names)) < len(names):
        twice = repeated(names)
        raise DataFileError(
            f"Columns of `{path}` have the names {twice} and {twice!r}. Rename one of them."
        )
    try:
        return {name: _plain(value) for name, value in zip(names, row.values(), strict=True)}
    except UnicodeEncodeError as error:
        raise DataFileError(
            f"{row_name(path, number)} contains half of a surrogate pair, got "
            f"{error.object[error.start]!r}, which is not a character. Write both halves, or "
            "remove it."
        ) from error


def _plain(value: Any) -> Any:
    """Return a value as JSON has it.

    Raises:
        UnicodeEncodeError: A text has half of a surrogate pair, which tokenizers do not accept.
    """
    if isinstance(value, str):
        value.encode()
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and value != value else value
