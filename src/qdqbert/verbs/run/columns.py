"""Find the columns that a run reads and writes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from qdqbert.common.choices import OutputFormat
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.rows.columns import Columns as Requested
from qdqbert.data.rows.columns import is_header, quoted
from qdqbert.data.tables.inputs import Source, Start
from qdqbert.data.tables.rows import BadRow, Header, Layout, Row
from qdqbert.data.tables.values import repeated_field
from qdqbert.loading.answers import answer_columns, entry_of, read_item, text_columns
from qdqbert.runtime.model import Model
from qdqbert.runtime.rows import RowFormat
from qdqbert.verbs.run.options import RunOptions

_LOGGER = logging.getLogger("qdqbert")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a run.

    Attributes:
        entry: The columns that the model reads and writes.
        read_names: Columns of the text, or of both texts of a pair.
        layout: Columns of the output.
        is_fixed: Whether the output can have no other columns.
    """

    entry: RowFormat
    read_names: tuple[str, ...]
    layout: Layout
    is_fixed: bool

    def read(self, row: Row) -> Any:
        """Return the input of the model's job for a row.

        Raises:
            DataFileError: The row cannot be used. The message is a phrase about "it".
        """
        if isinstance(row.values, dict):
            self._check_fields(row.values)
        return read_item(self.entry, row.values, self.read_names)

    def _check_fields(self, values: dict[str, object]) -> None:
        """Refuse fields that the first rows do not have, and that cannot be written."""
        for column in self.layout.answers:
            if column.name in values:
                raise DataFileError(
                    f"it has a field {column.name!r}, which is the name of an answer and which the "
                    "first rows do not have"
                )
        if self.is_fixed and not values.keys() <= set(self.layout.kept):
            odd = next(name for name in values if name not in self.layout.kept)
            raise DataFileError(
                f"it has a field {odd!r} that the first rows do not have, and the output has fixed "
                "columns"
            )


def find_columns(
    source: Source, start: Start, model: Model, options: RunOptions, format: OutputFormat
) -> Columns:
    """Find the columns of a run.

    An answer's column that has the name of a column of the input is called `predicted_NAME`.

    Raises:
        UserInputError: A column does not exist or cannot be inferred, an option does not apply to
            the model, or a row cannot be used.
    """
    entry = entry_of(model, options)
    bad = next((row for row in start.head if isinstance(row, BadRow)), None)
    if bad is not None and options.on_error == "stop":
        raise refuse(source.place(bad), bad.reason)
    rows = [row for row in start.head if isinstance(row, Row)]
    header = start.header or Header(())
    names = tuple(dict.fromkeys([*header.names, *(name for row in rows for name in row.values)]))
    answers = entry.columns(options)
    if format == "npy" and [each.kind for each in answers] != ["numbers"]:
        raise UserInputError(
            f"`output={options.output!r}`: .npy files are for embeddings, and "
            f"`model={options.model!r}` is {entry.name}. Write .parquet or .jsonl.",
            argument="output",
        )
    if header.types is not None and format in ("jsonl", "csv", "tsv"):
        _check_types(header, options)
    read_names = _read_names(source, rows, names, entry, options) if names else ()
    if read_names and len(names) > 1:
        found = " and ".join(f"column {name!r}" for name in read_names)
        _LOGGER.info("Reading %s.", found)
    answers = answer_columns(model, options, path=f"`input={options.input!r}`", names=names)
    layout = Layout(kept=names, answers=answers, types=header.types)
    _check_partitions(options, layout)
    return Columns(
        entry=entry, read_names=read_names, layout=layout, is_fixed=format in ("csv", "tsv")
    )


def _check_partitions(options: RunOptions, layout: Layout) -> None:
    """Refuse columns of folders that do not exist, and folders of all columns."""
    found = options.partition_by
    odd = next((each for each in found if each not in layout.names), None)
    if odd is not None:
        wrong = f"{odd!r} is not a column of the output. Choose from {quoted(layout.names)}."
    elif any(each[:1] in ("", ".", "_") for each in found):
        wrong = "readers leave out folders whose names start with '.' or '_', or have no name."
    elif len(set(found)) < len(found):
        wrong = "a column is named twice."
    elif found and set(found) == set(layout.names):
        wrong = "no column is left for the files."
    else:
        return
    raise UserInputError(f"`partition_by={list(found)!r}`: {wrong}", argument="partition_by")


def _check_types(header: Header, options: RunOptions) -> None:
    """Refuse columns whose values JSON cannot hold."""
    for field in header.types:
        twice = repeated_field(field.type)
        if twice is not None:
            raise DataFileError(
                f"Column {field.name!r} of `input={options.input!r}` has two fields {twice!r}, "
                f"which `output={options.output!r}` cannot hold. Write .parquet, or rename one.",
                argument="input",
            )


def _read_names(
    source: Source, rows: Sequence[Row], names: Sequence[str], entry: RowFormat, options: RunOptions
) -> tuple[str, ...]:
    """Return the columns of the texts."""
    path = rows[0].file if rows else options.input
    if entry.read is not None and not source.header:
        raise UserInputError(
            f"`header=False`: {entry.name} needs the names of the columns. Add a header.",
            argument="header",
        )
    if source.has_header:
        _check_header(path, names, options)
    try:
        return text_columns(
            entry,
            options,
            path=path,
            names=names,
            head=[(row.number, dict(row.values)) for row in rows],
            has_names=source.header,
        )
    except DataFileError as error:
        if not source.has_header:
            raise
        raise DataFileError(
            f"{error} If the first row is not a header, pass `header=False`.",
            argument=error.argument,
        ) from error


def _check_header(path: str, names: Sequence[str], options: RunOptions) -> None:
    """Refuse numbers of columns if the first row may be a row of data, which would be left out."""
    requested = Requested(text=options.text_column, text_pair=options.text_pair_column)
    if is_header(names, requested):
        return
    for argument, name in requested.requested.items():
        if name.isdecimal() and name not in names:
            raise DataFileError(
                f"`{argument}={name!r}` is the number of a column of `{path}`, whose first row has "
                f"no known name of a column, got {quoted(names)}. Pass the name of the column if "
                "this is a header, or `header=False` if it is not.",
                argument=argument,
            )


def refuse(place: str, reason: str) -> DataFileError:
    """Return the error about a row that cannot be used."""
    return DataFileError(
        f"{place}: {reason}. Correct the row, or pass `on_error='skip'` to leave such rows out."
    )
