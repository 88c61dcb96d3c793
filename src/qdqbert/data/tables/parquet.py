"""Read and write .parquet files with pyarrow, which is imported only when it is needed.

Values that a task does not read stay in Arrow's memory. They are written with the types that they
were read with.

A block of rows is a stream in Arrow's IPC format. A row group of the finished file has many.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from qdqbert.common.errors import DataFileError
from qdqbert.common.extras import require
from qdqbert.common.files import refuse_pointer
from qdqbert.common.storage import Place, is_unreachable, open_place, size_of, whole_file
from qdqbert.data.tables.rows import (
    NO_VALUE,
    After,
    BadRow,
    Column,
    Constant,
    Header,
    Kind,
    Layout,
    Row,
    to_json,
)
from qdqbert.data.tables.values import as_json, has_empty_object, is_text, levels

if TYPE_CHECKING:
    import pyarrow as pa

_READ_ROWS = 4096

# Rows or bytes of a row group: what other programs read at a time.
_GROUP_ROWS = 100_000
_GROUP_BYTES = 1 << 28

# Above it, numbers of JSON have no type of integers.
_LARGEST_INTEGER = 1 << 63

# Levels of types in a block. Arrow's limit is 64, for the table and all below it.
_MOST_LEVELS = 60

# Metadata of a file that is also true of its rows with answers: of pandas and GeoParquet. Spark's,
# for example, lists all columns.
_PANDAS, _GEO = b"pandas", b"geo"


def import_pyarrow() -> Any:
    """Return the module `pyarrow`."""
    require("Reading or writing .parquet files", "parquet")
    import pyarrow
    import pyarrow.parquet

    return pyarrow


class Batch:
    """A record batch, and the columns that were converted to Python."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Keep the batch; nothing is converted yet."""
        self.batch = batch
        self._read: dict[str, list[Any]] = {}
        self._written: dict[str, list[Any]] = {}

    def __reduce__(self) -> Any:
        """Pickle the batch alone."""
        return Batch, (self.batch,)

    def read(self, name: str) -> list[Any]:
        """Return the values of a column as Python's, those that Python has not as Arrow's."""
        if name not in self._read:
            column = self.batch.column(name)
            try:
                self._read[name] = column.to_pylist()
            except Exception:
                self._read[name] = [_python(value) for value in column]
        return self._read[name]

    def written(self, name: str) -> list[Any]:
        """Return the values of a column as text formats have them; see `as_json`."""
        if name not in self._written:
            try:
                self._written[name] = as_json(self.batch.column(name))
            except UnicodeDecodeError as error:
                raise DataFileError(
                    f"Column {name!r} has a text that is not UTF-8, which only .parquet files can "
                    "hold. Write .parquet, or correct it."
                ) from error
        return self._written[name]


def _python(value: Any) -> Any:
    """Return a value of Arrow as Python's; itself if Python has none.

    These are nanoseconds, years and zones that Python does not know, and texts that are not UTF-8.
    """
    try:
        return value.as_py()
    except Exception:
        return value


class BatchRow(Mapping[str, Any]):
    """A row of a record batch. Columns are converted to Python when they are read."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: Batch, index: int) -> None:
        """Refer to row `index` of a batch."""
        self.batch = batch
        self.index = index

    def __getitem__(self, name: str) -> Any:
        return self.batch.read(name)[self.index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch.batch.schema.names)

    def __len__(self) -> int:
        return int(self.batch.batch.num_columns)


def written(values: Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return fields of a row as text formats have them; see `as_json`.

    `names` are the fields to return; all of them by default.
    """
    chosen = values if names is None else names
    if isinstance(values, BatchRow):
        return {name: values.batch.written(name)[values.index] for name in chosen}
    return {name: values.get(name) for name in chosen}


def schema_of(path: Path) -> Any:
    """Return the schema of a .parquet file, without metadata."""
    with _open(path) as file:
        return file.schema_arrow.remove_metadata()


def rows_of_groups(path: Place) -> list[int]:
    """Return the number of rows of each row group of a .parquet file."""
    with _open(path) as file:
        found = file.metadata
        return [found.row_group(index).num_rows for index in range(found.num_row_groups)]


@contextlib.contextmanager
def _open(path: Place) -> Iterator[Any]:
    pyarrow = import_pyarrow()
    try:
        with open_place(path) as content, pyarrow.parquet.ParquetFile(content) as file:
            yield file
    except pyarrow.ArrowException as error:
        if isinstance(path, Path):
            refuse_pointer(path, DataFileError)
        raise DataFileError(
            f"File `{path}` is not a Parquet file: {str(error).rstrip('.')}."
        ) from error


def read_parquet(
    path: Place,
    size: int = 0,
    *,
    rows: tuple[int, int] | None = None,
    partition: Mapping[str, Constant] = MappingProxyType({}),
    after: After | None = None,
    skips_damage: bool = False,
) -> Iterator[Header | Row | BadRow]:
    """Yield the columns and the rows of a .parquet file.

    Args:
        path: The file.
        size: Size of what is read, for the positions of rows.
        rows: The first row, from 0, and the one after the last, between row groups; all by default.
        partition: Values of the columns that the folders around it have. They are added, unless
            the file has such a column.
        after: The row after which reading starts. Row groups before it are not read.
        skips_damage: Whether a row group that cannot be read becomes a `BadRow`.

    Raises:
        DataFileError: The file cannot be read, two columns have the same name, or one has too many
            levels.
    """
    with _open(path) as file:
        found = file.schema_arrow
        names = found.names
        if len(set(names)) < len(names):
            raise DataFileError(f"File `{path}` has several columns with the same name: {names!r}.")
        for field in found:
            if levels(field.type) > _MOST_LEVELS:
                raise DataFileError(
                    f"Column {field.name!r} of `{path}` has more than {_MOST_LEVELS} types in one "
                    "another. Leave it out."
                )
        added = {name: value for name, value in partition.items() if name not in names}
        schema = _with_columns(found, added)
        yield Header(tuple(schema.names), schema, str(path))
        first_row, stop = rows or (0, file.metadata.num_rows)
        total, skipped = max(1, stop - first_row), max(first_row, after.number if after else 0)
        number = 0
        for group in range(file.metadata.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if number + count <= skipped:
                number += count
                continue
            if number >= stop:
                return
            end = number + count
            try:
                for each in file.iter_batches(_READ_ROWS, [group], use_threads=False):
                    batch = Batch(_with_values(each, schema, added))
                    for index in range(max(0, skipped - number), each.num_rows):
                        row = number + index + 1
                        yield Row(
                            str(path),
                            row,
                            BatchRow(batch, index),
                            size * (row - first_row) // total,
                        )
                    number += each.num_rows
            except (import_pyarrow().ArrowException, OSError) as error:
                if is_unreachable(error, path):
                    raise
                first = max(number, skipped) + 1
                what = " ".join(str(error).split()).rstrip(".")
                reason = f"row group {group} cannot be read: {what}"
                if not skips_damage:
                    raise DataFileError(
                        f"Rows {first} to {end} of `{path}`, in {reason}. Replace the file, or "
                        "pass `on_error='skip'` to leave these rows out."
                    ) from error
                position = size * (end - first_row) // total
                yield BadRow(str(path), first, f"in {reason}", position, end, end - first + 1)
                number = end


def _with_columns(schema: Any, added: Mapping[str, Constant]) -> Any:
    pyarrow = import_pyarrow()
    for name, each in added.items():
        kind = pyarrow.int64() if each.is_integer else pyarrow.string()
        schema = schema.append(pyarrow.field(name, kind))
    return schema


def _with_values(batch: Any, schema: Any, added: Mapping[str, Constant]) -> Any:
    """Return a batch with columns of one value."""
    if not added:
        return batch
    pyarrow = import_pyarrow()
    arrays = [
        pyarrow.repeat(pyarrow.scalar(each.value, schema.field(name).type), batch.num_rows)
        for name, each in added.items()
    ]
    return pyarrow.RecordBatch.from_arrays([*batch.columns, *arrays], schema=schema)


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
        writer.write_table(_combined(table))
    return bytes(buffer.getvalue().to_pybytes())


def _combined(table: Any) -> Any:
    pyarrow = import_pyarrow()
    try:
        return table.combine_chunks()
    except pyarrow.ArrowNotImplementedError:
        # List views.
        return table


def _kept(rows: Sequence[Row]) -> Any:
    """Return the columns that the rows came with as a table."""
    pyarrow = import_pyarrow()
    if rows and isinstance(rows[0].values, BatchRow):
        # Consecutive rows are a slice, which all types have; views cannot be taken one by one.
        pieces = []
        taken: list[Any] = [row.values for row in rows]
        start = 0
        for end, after in enumerate([*taken[1:], None], start=1):
            last = taken[end - 1]
            if after is None or (after.batch, after.index) != (last.batch, last.index + 1):
                pieces.append(last.batch.batch.slice(taken[start].index, end - start))
                start = end
        schema = pieces[0].schema
        if any(not each.schema.equals(schema, check_metadata=True) for each in pieces):
            # Of several files.
            fields = [
                _field(schema.field(name).type, [each.schema.field(name) for each in pieces])
                for name in schema.names
            ]
            schema = pyarrow.schema(fields, _agreed([each.schema for each in pieces]))
        table = pyarrow.Table.from_batches(pieces)
        return pyarrow.table(table.columns, schema=schema)
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
    """Return a value as a text. A number has one text, 1 for 1.0, whichever type its column has."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_INTEGER:
        return str(int(value))
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


def join_blocks(layout: Layout, sources: Sequence[Place], path: Path) -> str:
    """Write blocks as one file. Returns a digest of its columns and their types.

    Args:
        layout: Columns of the file, if it has no rows.
        sources: Files of blocks.
        path: The finished file.
    """
    pyarrow = import_pyarrow()
    schemas = (each.schema for each in _blocks(sources))
    schema = _common_schema(layout, schemas, lambda: _blocks(sources))
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=_repeated(schema)) as writer:
        for table in _row_groups(_cast(each, schema) for each in _blocks(sources)):
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            # Not two of them at a time in memory.
            del table
    return _digest(schema)


def write_table(path: Path, table: Any) -> str:
    """Write a table as a file of one row group. Returns what `join_blocks` does."""
    import_pyarrow().parquet.write_table(
        table, path, row_group_size=max(1, table.num_rows), use_dictionary=_repeated(table.schema)
    )
    return _digest(table.schema)


def _digest(schema: Any) -> str:
    content = schema.remove_metadata().serialize().to_pybytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _repeated(schema: Any) -> list[str] | bool:
    """Return the columns whose values may be repeated, of which a dictionary is worth its time.

    Only columns without fields can be named to Arrow. If others have no vectors, all are returned.
    """
    types = import_pyarrow().types
    flat = [field.name for field in schema if not field.type.num_fields]
    others = [field.type for field in schema if field.type.num_fields]

    def is_vector(kind: Any) -> bool:
        return bool(types.is_floating(kind)) or (types.is_list(kind) and is_vector(kind.value_type))

    return flat if others and all(map(is_vector, others)) else True


def _row_groups(tables: Iterable[Any]) -> Iterator[Any]:
    """Yield tables that are large enough for a row group, which readers take as one piece."""
    pyarrow = import_pyarrow()
    found: list[Any] = []
    rows = size = 0
    for table in tables:
        found.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pyarrow.concat_tables(found)
            found, rows, size = [], 0, 0
    if found:
        yield pyarrow.concat_tables(found)


def partitions(
    layout: Layout, sources: Sequence[Place], names: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the rows of blocks for each combination of values of columns, without these columns.

    Yields:
        The folder, as Hive, Spark and pyarrow name it: `lang=en/day=1`; and a table.
    """
    pyarrow = import_pyarrow()
    blocks = list(_blocks(sources))
    schema = _common_schema(layout, (each.schema for each in blocks), lambda: blocks)
    table = pyarrow.concat_tables(
        [_cast(each, schema) for each in blocks] or [schema.empty_table()]
    )
    places: dict[str, list[int]] = {}
    for row, key in enumerate(zip(*(as_json(table.column(name)) for name in names), strict=True)):
        pairs = zip(names, map(_plain, key), strict=True)
        # Values that differ can have one name, as NaN and no value.
        folder = "/".join(f"{quote(n, safe='')}={quote(value, safe='')}" for n, value in pairs)
        places.setdefault(folder, []).append(row)
    rest = table.drop_columns(list(names))
    if not places:
        yield "", rest
    for folder, rows in places.items():
        yield folder, pyarrow.concat_tables(_runs(rest, rows))


def _runs(table: Any, rows: Sequence[int]) -> Iterator[Any]:
    """Yield rows of a table, of which consecutive ones are a slice, which all types have."""
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end] != rows[end - 1] + 1:
            yield table.slice(rows[start], end - start)
            start = end


def _plain(value: Any) -> str:
    """Return a value as a part of the name of a folder."""
    text = None if value != value else _json_text(value)
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return NO_VALUE if text is None else text


def unify_files(layout: Layout, files: Sequence[Place]) -> None:
    """Write files again whose columns or types differ from what all files have in common."""
    pyarrow = import_pyarrow()
    found, valued = {}, []
    for path in files:
        with _open(path) as file:
            found[path] = file.schema_arrow
            valued.append(_valued(file))
    schema = _common_schema(layout, valued, lambda: _tables(files))
    for path in files:
        if found[path].equals(schema):
            continue
        with (
            _open(path) as file,
            whole_file(path) as place,
            pyarrow.parquet.ParquetWriter(
                place, schema, use_dictionary=_repeated(schema)
            ) as writer,
        ):
            for group in range(file.num_row_groups):
                table = _cast(file.read_row_group(group), schema)
                writer.write_table(table, row_group_size=max(1, table.num_rows))


def _valued(file: Any) -> Any:
    """Return the schema of a file, in which a column of texts that has none has no type.

    It may have numbers in other files.
    """
    pyarrow = import_pyarrow()
    schema = file.schema_arrow
    for index, field in enumerate(schema):
        if is_text(field.type) and _has_no_value(file.metadata, field.name):
            schema = schema.set(index, field.with_type(pyarrow.null()))
    return schema


def _has_no_value(metadata: Any, name: str) -> bool:
    """Return whether the statistics of a file show that a column has no value."""
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    columns = (
        group.column(index)
        for group in groups
        for index in range(group.num_columns)
        if group.column(index).path_in_schema == name
    )
    counts = [(each.statistics, each.num_values) for each in columns]
    return all(known and known.null_count == number for known, number in counts)


def _tables(files: Iterable[Place]) -> Iterator[Any]:
    """Yield the row groups of finished files."""
    for path in files:
        with _open(path) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)


def _blocks(sources: Iterable[Place]) -> Iterator[Any]:
    """Yield blocks as tables. A file can have several, one after another.

    Files of this machine are mapped into memory: what is not used of a table is not read.
    """
    pyarrow = import_pyarrow()
    for path in sources:
        left = size_of(path)
        is_here = isinstance(path, Path)
        with pyarrow.memory_map(str(path)) if is_here else open_place(path) as file:
            while file.tell() < left:
                with pyarrow.ipc.open_stream(file) as block:
                    yield block.read_all()


def _common_schema(
    layout: Layout, schemas: Iterable[Any], tables: Callable[[], Iterable[Any]]
) -> Any:
    """Return a schema that all tables can be cast to; text for columns whose types do not fit.

    Columns of the input come first, in the order in which they were found.

    Args:
        layout: Columns, if there are no tables.
        schemas: The schema of each table.
        tables: Called for each time that the tables are read, if their types differ.
    """
    pyarrow = import_pyarrow()
    found: dict[str, list[Any]] = {}
    different: list[Any] = []
    counts: Counter[str] = Counter()
    for schema in schemas:
        counts.update(schema.names)
        if any(schema.equals(each, check_metadata=True) for each in different):
            continue
        different.append(schema)
        for field in schema:
            found.setdefault(field.name, []).append(field)
    if not found:
        return _schema_without_rows(layout)
    typed = () if layout.types is None else layout.types.names
    answers = {each.name for each in layout.answers}
    fields = []
    for name in sorted(found, key=answers.__contains__):
        kinds = list(dict.fromkeys(field.type for field in found[name]))
        kind = kinds[0] if len(kinds) == 1 else _common_type(name, kinds, tables)
        # A column of JSON without any value has no type, and Parquet has no objects without fields.
        if (pyarrow.types.is_null(kind) and name not in typed) or has_empty_object(kind):
            kind = pyarrow.string()
        field = _field(kind, found[name])
        is_missing = counts[name] < max(counts.values())
        fields.append(field.with_nullable(field.nullable or is_missing))
    return pyarrow.schema(fields, _metadata(_agreed(different)))


def _field(kind: Any, found: Sequence[Any]) -> Any:
    """Return a column with a type, and with what fields of several schemas say besides."""
    nullable = any(each.nullable for each in found)
    return import_pyarrow().field(found[0].name, kind, nullable, _agreed(found))


def _agreed(found: Sequence[Any]) -> dict[bytes, bytes]:
    """Return the metadata that fields or schemas have in common."""
    first, *others = [each.metadata or {} for each in found]
    return {
        key: value for key, value in first.items() if all(each.get(key) == value for each in others)
    }


def _metadata(found: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what stays true of the metadata of a file when columns are added and rows left out."""
    kept = {key: found[key] for key in (_PANDAS, _GEO) if key in found}
    try:
        pandas = json.loads(kept.pop(_PANDAS, b""))
        # An object is an index that counts rows.
        names = [each for each in pandas["index_columns"] if isinstance(each, str)]
        levels = pandas["column_indexes"]
        # Names of answers are texts, with one level.
        is_text = [each["pandas_type"] for each in levels] == ["unicode"]
        changes = {"index_columns": names, "column_indexes": levels if is_text else []}
        kept[_PANDAS] = json.dumps({**pandas, **changes}).encode()
    except (ValueError, TypeError, KeyError):
        pass
    return kept


def _schema_without_rows(layout: Layout) -> Any:
    """Return the schema that rows would have had. Columns without types have texts."""
    pyarrow = import_pyarrow()
    kept = [
        layout.types.field(name)
        if layout.types is not None
        else pyarrow.field(name, pyarrow.string())
        for name in layout.kept
    ]
    answers = [pyarrow.field(each.name, answer_array(each, []).type) for each in layout.answers]
    metadata = {} if layout.types is None else layout.types.metadata or {}
    return pyarrow.schema([*kept, *answers], _metadata(metadata))


def _common_type(name: str, kinds: Sequence[Any], tables: Callable[[], Iterable[Any]]) -> Any:
    """Return the type that holds the values of a column in all blocks; text if none does."""
    pyarrow = import_pyarrow()
    kinds = [each for each in kinds if not pyarrow.types.is_null(each)]
    if len(kinds) == 1:
        return kinds[0]
    try:
        merged = pyarrow.unify_schemas(
            [pyarrow.schema([(name, kind)]) for kind in kinds], promote_options="permissive"
        )
        kind = merged.field(0).type
        # An integer may be too large for the type of fractions.
        for table in tables():
            if name in table.column_names and table.column(name).null_count < table.num_rows:
                table.column(name).cast(kind)
    except pyarrow.ArrowException:
        return pyarrow.string()
    return kind


def _cast(table: Any, schema: Any) -> Any:
    pyarrow = import_pyarrow()
    arrays = []
    for field in schema:
        if field.name not in table.column_names:
            arrays.append(pyarrow.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        if column.type != field.type and column.null_count == len(column):
            column = pyarrow.nulls(len(column), field.type)
        elif column.type != field.type:
            if is_text(field.type) and not pyarrow.types.is_null(column.type):
                column = pyarrow.array([_json_text(each) for each in column.to_pylist()])
            column = column.cast(field.type)
        arrays.append(column)
    return pyarrow.table(arrays, schema=schema)
