"""Read columns of batches of Ray Data, pandas, polars and Arrow, and add columns to them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.data.tables.parquet import answer_array, import_pyarrow
from qdqbert.data.tables.rows import Column

_DTYPES = {"number": np.float64, "integer": np.int64}

# Doubles of this size and more are not all of the integers.
_FIRST_ROUNDED = 2**53

Answers = Sequence[tuple[Column, list[Any]]]
"""Columns of answers with their values, one for each row; `None` for a row without answers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchKind:
    """Functions that read and extend batches of one library.

    Attributes:
        names: Returns the names of the columns.
        values: Returns the values of a column as Python's objects, with `None` for missing ones.
        extended: Returns the batch with more columns.
        opened: Returns the batch that these functions take.
        closed: Returns a batch of the kind that was given.
    """

    names: Callable[[Any], list[str]]
    values: Callable[[Any, str], list[Any]]
    extended: Callable[[Any, Answers], Any]
    opened: Callable[[Any], Any] = lambda batch: batch
    closed: Callable[[Any], Any] = lambda batch: batch


def _check_arrays(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse a row, and columns of different lengths."""
    for name, values in batch.items():
        is_scalar = isinstance(values, np.ndarray) and not values.ndim
        if is_scalar or isinstance(values, str | bytes | Mapping) or not isinstance(values, Sized):
            raise UserInputError(
                f"A batch has columns, got a row: {name!r} is {type(values).__name__}. With Ray, "
                "call `map_batches` instead of `map`; with `datasets`, pass `batched=True` to "
                "`map`. Put the values of a row in lists."
            )
    lengths = {name: len(values) for name, values in batch.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise UserInputError(f"The columns of a batch must have the same length: {found}.")
    return batch


def _object_array(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    # `array[:] = values` would look into lists.
    for index, value in enumerate(values):
        array[index] = value
    return array


def _array(column: Column, values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array with one dimension. Missing numbers are NaN, others `None`."""
    if column.kind == "number" or (column.kind == "integer" and not _is_missing(values)):
        return np.array(values, dtype=_DTYPES[column.kind])
    if column.kind == "numbers":
        values = [each if each is None else np.asarray(each, column.dtype) for each in values]
    return _object_array(values)


def _is_missing(values: Sequence[Any]) -> bool:
    """Return whether a row has no answer."""
    return any(each is None for each in values)


def _extend_arrays(batch: Mapping[str, NDArray[Any]], answers: Answers) -> dict[str, NDArray[Any]]:
    arrays = {column.name: _array(column, values) for column, values in answers}
    for column, values in answers:
        # Bytes have no value for what is missing.
        if column.length is not None and (column.dtype == "float32" or not _is_missing(values)):
            stacked = arrays[column.name] = np.empty((len(values), column.length), column.dtype)
            for index, value in enumerate(values):
                stacked[index] = np.nan if value is None else value
    return {**batch, **arrays}


def _pandas_values(batch: Any, name: str) -> list[Any]:
    column = batch[name]
    values: list[Any] = column.astype(object).where(column.notna(), None).tolist()
    return values


def _extend_frame(batch: Any, answers: Answers) -> Any:
    added = {column.name: _array(column, values) for column, values in answers}
    missing = [
        column.name
        for column, values in answers
        if column.kind == "integer" and _is_missing(values)
    ]
    return batch.assign(**added).astype(dict.fromkeys(missing, "Int64"))


def _extend_table(batch: Any, answers: Answers) -> Any:
    for column, values in answers:
        batch = batch.append_column(column.name, _arrow_array(column, values))
    return batch


def _arrow_array(column: Column, values: Sequence[Any]) -> Any:
    """Return values as an array of Arrow, in which `None` is null."""
    present = [each for each in values if each is not None]
    array = answer_array(column, present)
    if len(present) == len(values):
        return array
    places = itertools.count()
    taken = [None if each is None else next(places) for each in values]
    return array.take(import_pyarrow().array(taken, "int64"))


def _extend_polars(batch: Any, answers: Answers) -> Any:
    require("An answer as columns of polars", "parquet")
    columns = {column.name: _arrow_array(column, values) for column, values in answers}
    return batch.hstack(type(batch)(import_pyarrow().table(columns)))


_NUMPY = BatchKind(
    names=list,
    # Masked arrays have `None` for what is masked.
    values=lambda batch, name: np.asanyarray(batch[name]).tolist(),
    extended=_extend_arrays,
    opened=_check_arrays,
)
_ARROW = BatchKind(
    names=lambda batch: batch.schema.names,
    values=lambda batch, name: batch.column(name).to_pylist(),
    extended=_extend_table,
)
_POLARS = BatchKind(
    names=lambda batch: batch.columns,
    values=lambda batch, name: batch.get_column(name).to_list(),
    extended=_extend_polars,
)
# By the name of the package, and the name of the class.
_KINDS: Mapping[tuple[str, str], BatchKind] = {
    ("pandas", "DataFrame"): BatchKind(
        names=lambda batch: list(batch.columns), values=_pandas_values, extended=_extend_frame
    ),
    ("pyarrow", "Table"): _ARROW,
    ("pyarrow", "RecordBatch"): _ARROW,
    ("polars", "DataFrame"): _POLARS,
    ("polars", "LazyFrame"): dataclasses.replace(
        _POLARS, opened=lambda batch: batch.collect(), closed=lambda batch: batch.lazy()
    ),
    ("polars", "Series"): dataclasses.replace(
        _POLARS,
        opened=lambda batch: batch.to_frame(),
        closed=lambda batch: batch.to_struct(batch.columns[0]),
    ),
}


def kind_of(batch: Any) -> BatchKind:
    """Return the kind of a batch."""
    if isinstance(batch, Mapping):
        return _NUMPY
    for each in type(batch).__mro__:
        kind = _KINDS.get((each.__module__.partition(".")[0], each.__name__))
        if kind is not None:
            return kind
    raise UserInputError(
        "A batch has to be a dictionary of numpy arrays, a DataFrame of pandas or polars, or a "
        f"pyarrow Table, got {type(batch).__name__}."
    )


def rounded_columns(batch: Any) -> list[str]:
    """Return columns of floats that may have been integers, and do not have all of their digits.

    numpy and pandas have no missing integers: whoever converts them to such batches makes floats
    of them, which are whole numbers then. Those from 2**53 on are rounded.
    """
    items = batch.items() if hasattr(batch, "items") else ()
    return [str(name) for name, column in items if _is_rounded(column)]


def _is_rounded(column: Any) -> bool:
    if getattr(column, "dtype", None) != np.float64 or column.ndim != 1:
        return False
    values = np.asarray(column)
    known = values[~np.isnan(values)]
    if len(known) in (0, len(values)) or not np.isfinite(known).all():
        return False
    return bool((known == np.floor(known)).all() and abs(known).max() >= _FIRST_ROUNDED)
