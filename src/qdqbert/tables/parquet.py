"""Read and write .parquet files with pyarrow, which is imported only when it is needed.

Values that a task does not read stay in Arrow's memory. They are written with the types that they
were read with.

A block of rows is a stream in Arrow's IPC format. The finished file has one row group per block.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqbert.errors import DataFileError, MissingExtraError
from qdqbert.tables.rows import Column, Kind, Row, to_json

if TYPE_CHECKING:
    import pyarrow as pa

_READ_ROWS = 4096


def import_pyarrow() -> Any:
    """Return the module `pyarrow`.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Reading and writing .parquet files requires pyarrow: pip install 'qdqbert[parquet]'"
        ) from error
    return pyarrow


class BatchRow(Mapping[str, Any]):
    """A row of a record batch. Values are converted to Python when they are read."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: pa.RecordBatch, index: int) -> None:
        """Refer to row `index` of a batch."""
        self.batch = batch
        self.index = index

    def __getitem__(self, name: str) -> Any:
        position = self.batch.schema.get_field_index(name)
        if position < 0:
            raise KeyError(name)
        value = self.batch.column(position)[self.index]
        try:
            return value.as_py()
        except ValueError:
            # Nanoseconds, which Python's dates and times do not have.
            return str(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch.schema.names)

    def __len__(self) -> int:
        return int(self.batch.num_columns)


def count_rows(path: Path) -> int:
    """Return the number of rows of a .parquet file."""
    return int(_open(path).metadata.num_rows)


def schema_of(path: Path) -> Any:
    """Return the schema of a .parquet file, without metadata."""
    return _open(path).schema_arrow.remove_metadata()


def _open(path: Path) -> Any:
    pyarrow = import_pyarrow()
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowException as error:
        raise DataFileError(
            f"File `{path}` is not a Parquet file: {str(error).rstrip('.')}."
        ) from error


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a .parquet file.

    Raises:
        DataFileError: The file cannot be read, or two columns have the same name.
    """
    pyarrow = import_pyarrow()
    with _open(path) as file:
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise DataFileError(f"File `{path}` has several columns with the same name: {names!r}.")
        number = 0
        try:
            for batch in file.iter_batches(batch_size=_READ_ROWS):
                for index in range(batch.num_rows):
                    number += 1
                    yield Row(str(path), number, BatchRow(batch, index), number)
        except pyarrow.ArrowException as error:
            raise DataFileError(
                f"File `{path}` cannot be read after row {number}: {error}."
            ) from error


def write_block(
    columns: Sequence[Column], rows: Sequence[Row], answers: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return rows and their answers as a block."""
    pyarrow = import_pyarrow()
    table = _kept(rows)
    for column in columns:
        values = [answer[column.name] for answer in answers]
        table = table.append_column(column.name, answer_array(column, values))
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(buffer.getvalue().to_pybytes())


def _kept(rows: Sequence[Row]) -> Any:
    """Return the columns that the rows came with as a table."""
    pyarrow = import_pyarrow()
    if rows and isinstance(rows[0].values, BatchRow):
        pieces = []
        for _, group in itertools.groupby(rows, key=lambda row: id(row.values.batch)):  # type: ignore[attr-defined]
            taken = [row.values for row in group]
            pieces.append(taken[0].batch.take([each.index for each in taken]))  # type: ignore[attr-defined]
        return pyarrow.Table.from_batches(pieces).replace_schema_metadata(None)
    names = dict.fromkeys(name for row in rows for name in row.values)
    arrays = [_plain_array([row.values.get(name) for row in rows]) for name in names]
    return pyarrow.table(dict(zip(names, arrays, strict=True)))


def _plain_array(values: Sequence[Any]) -> Any:
    """Return values of JSON as an array; as an array of JSON texts if their types differ."""
    pyarrow = import_pyarrow()
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.array([_json_text(value) for value in values], pyarrow.string())


def _json_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else to_json(value)


def answer_array(column: Column, values: Sequence[Any]) -> Any:
    """Return the values of a column of answers as an array of Arrow."""
    pyarrow = import_pyarrow()
    if column.kind == "numbers":
        return _lists(values, _flat(values, column.dtype))
    if column.kind == "vectors":
        vectors = [vector for value in values for vector in value]
        return _lists(values, _lists(vectors, _flat(vectors, column.dtype)))
    return pyarrow.array(values, _type(column.kind, column.fields))


def _flat(values: Sequence[Any], dtype: str) -> Any:
    """Return the numbers of lists, one list after another."""
    # `concatenate` needs at least one array.
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(each, dtype) for each in values)])


def _lists(values: Sequence[Any], flat: Any) -> Any:
    """Return an array of Arrow of lists that are as long as `values`, with the values of `flat`."""
    pyarrow = import_pyarrow()
    ends = np.cumsum([0, *(len(value) for value in values)], dtype=np.int32)
    return pyarrow.ListArray.from_arrays(ends, flat)


def _type(kind: Kind, fields: Sequence[tuple[str, Kind]] = ()) -> Any:
    pyarrow = import_pyarrow()
    types = {"text": pyarrow.string(), "number": pyarrow.float64(), "integer": pyarrow.int64()}
    if kind in types:
        return types[kind]
    if kind == "texts":
        return pyarrow.list_(pyarrow.string())
    record = pyarrow.struct([(name, _type(each)) for name, each in fields])
    listed = pyarrow.list_(record)
    return listed if kind == "records" else pyarrow.list_(listed)


def join_blocks(sources: Sequence[Path], outputs: Sequence[tuple[Path, Sequence[Path]]]) -> None:
    """Write finished files, all with the same schema.

    Args:
        sources: All blocks, a file each; empty files are left out.
        outputs: Paths of the finished files, each with the `sources` that it contains.
    """
    pyarrow = import_pyarrow()
    schema = _common_schema([table.schema for table in _blocks(sources, with_rows=False)])
    for path, parts in outputs:
        with path.open("wb") as file:
            with pyarrow.parquet.ParquetWriter(file, schema) as writer:
                for table in _blocks(parts):
                    writer.write_table(_cast(table, schema))
            file.flush()
            os.fsync(file.fileno())


def _blocks(sources: Iterable[Path], *, with_rows: bool = True) -> Iterator[Any]:
    """Yield blocks as tables, which are empty unless `with_rows`."""
    pyarrow = import_pyarrow()
    for path in sources:
        if not path.stat().st_size:
            continue
        # The schema is at the start of a block.
        with path.open("rb") as file, pyarrow.ipc.open_stream(file) as block:
            yield block.read_all() if with_rows else block.schema.empty_table()


def _common_schema(schemas: Sequence[Any]) -> Any:
    """Return a schema that all blocks can be cast to; text for columns whose types do not fit."""
    pyarrow = import_pyarrow()
    fields: dict[str, Any] = {}
    for field in itertools.chain.from_iterable(schemas):
        known = fields.setdefault(field.name, field)
        if known.type == field.type:
            continue
        try:
            merged = pyarrow.unify_schemas(
                [pyarrow.schema([known]), pyarrow.schema([field])], promote_options="permissive"
            )
            fields[field.name] = merged.field(0)
        except pyarrow.ArrowException:
            fields[field.name] = pyarrow.field(field.name, pyarrow.string())
    # A column without any value has no type.
    return pyarrow.schema(
        [
            pyarrow.field(each.name, pyarrow.string()) if pyarrow.types.is_null(each.type) else each
            for each in fields.values()
        ]
    )


def _cast(table: Any, schema: Any) -> Any:
    pyarrow = import_pyarrow()
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            arrays.append(pyarrow.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        is_plain = pyarrow.types.is_string(column.type) or pyarrow.types.is_null(column.type)
        if pyarrow.types.is_string(field.type) and not is_plain:
            column = pyarrow.array([_json_text(each) for each in column.to_pylist()], field.type)
        arrays.append(column.cast(field.type))
    return pyarrow.table(arrays, schema=schema)
