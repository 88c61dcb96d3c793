"""Rows of readers, and columns of writers."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from qdqbert.common.files import json_values

Kind = Literal[
    "text", "number", "integer", "texts", "numbers", "vectors", "records", "record_lists"
]

# A pair of surrogates, a single surrogate (in the group), or another escape. In JSON a backslash
# always starts one of them.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", flags=re.DOTALL
)


NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name for no value, in the names of folders."""


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The columns of a file that names them before its rows.

    Attributes:
        types: Their types as a schema of Arrow, if the file has types.
        file: The file, as messages name it, if it has types.
    """

    names: tuple[str, ...]
    types: Any = None
    file: str = ""

    @property
    def columns(self) -> tuple[str, Any] | None:
        """The file and its types, which other files need, too; `None` if it has no types."""
        return None if self.types is None else (self.file, self.types.remove_metadata())


class Row(NamedTuple):
    """A row of a file.

    Attributes:
        file: The file, as messages name it.
        number: Number of the row from 1: of its first line in formats that have lines, which
            counts a header.
        values: Values by the names of columns.
        position: How much of the input was read up to the end of the row, in the units of
            `Source.size`.
        last: Number of its last line, if it has several.
    """

    file: str
    number: int
    values: Mapping[str, Any]
    position: int
    last: int = 0


class BadRow(NamedTuple):
    """A row that cannot be used, or several in a part of a file that is damaged.

    Attributes:
        file: The file, as messages name it.
        number: Number of the row; see `Row`.
        reason: The fault, as a phrase that follows "Line 3 of `file`: ".
        position: How much of the input was read; see `Row`.
        last: Number of the last line or row, if there are several.
        rows: Number of rows that are lost; 1 if it is not known.
    """

    file: str
    number: int
    reason: str
    position: int
    last: int = 0
    rows: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class After:
    """The place in a file up to which it was read: the end of a row.

    Attributes:
        number: Number of the last row, or of the last line of it.
        position: How much of the file was read: bytes, or rows of a .parquet file.
    """

    number: int
    position: int


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    """The value of a column in all rows of a file.

    Attributes:
        value: The value; `None` for none.
        is_integer: Whether the column has integers, and not texts.
    """

    value: str | int | None
    is_integer: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column that a task adds to the rows.

    Attributes:
        kind: What its values are: a text, a float, an integer, lists of texts or of numbers, arrays
            `(rows, numbers)`, lists of objects, or lists of such lists.
        fields: Names and kinds of the fields of objects.
        dtype: Type of the values in lists of numbers and in arrays: float32, int32, int8 or uint8.
        length: Length of each list of numbers, if all have the same.
    """

    name: str
    kind: Kind
    fields: tuple[tuple[str, Kind], ...] = ()
    dtype: str = "float32"
    length: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns of an output file.

    Attributes:
        kept: Names of the columns of the input that are written, in order.
        answers: Columns that the task adds.
        types: Types of the columns of the input as a schema of Arrow, if it has types.
    """

    kept: tuple[str, ...]
    answers: tuple[Column, ...]
    types: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return (*self.kept, *(each.name for each in self.answers))


def half_surrogate(text: str) -> re.Match[str] | None:
    """Return the first escape in JSON that is half of a surrogate pair.

    Python's strings accept it, but tokenizers do not.
    """
    return next((each for each in _ESCAPE.finditer(text) if each[1]), None)


def to_json(value: Any) -> str:
    """Return a value as one line of JSON. Arrays become lists, and NaN and infinity null.

    Numbers of an array have the fewest digits that give back the same number of its type.
    """
    if isinstance(value, np.ndarray):
        return orjson.dumps(value, np.ascontiguousarray, _WITH_ARRAYS).decode()
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json.dumps(json_values(value), ensure_ascii=False, default=_list)


def object_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of a .jsonl file; see `to_json`."""
    try:
        # Arrays that have gaps in memory are copied.
        return orjson.dumps(row, np.ascontiguousarray, _WITH_ARRAYS | orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # It has an integer of more than 64 bits.
        return f"{to_json(row)}\n".encode()


def _list(value: Any) -> Any:
    return json_values(value.tolist())


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_list, allow_nan=False)
_WITH_ARRAYS = orjson.OPT_SERIALIZE_NUMPY
