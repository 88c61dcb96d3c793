"""Data in memory as values of options: lists, DataFrames and data sets.

They are recognized by their methods, so that neither pandas nor datasets is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set, Sized
from pathlib import Path
from typing import Any, Literal, Protocol


class Records(Sized, Iterable[Any], Protocol):
    """A list of texts, tuples or dicts, a DataFrame of pandas, or a `datasets.Dataset`."""


Data = str | Path | Records
"""Data as the public functions take them: a file, a folder, `hub:NAME@SPLIT`, or rows in memory."""


class Rows:
    """Rows in memory. In messages, reports and commands, `<list of 200 rows>` stands for them.

    Attributes:
        values: The object that has the rows.
        kind: How its rows are read: as those of pandas, of the library `datasets`, or one by one.
    """

    def __init__(self, values: Any, kind: Literal["pandas", "dataset", "sequence"]) -> None:
        """Keep the object."""
        self.values = values
        self.kind = kind

    def __repr__(self) -> str:
        """Return the type and the number of rows."""
        count = len(self.values)
        return f"<{type(self.values).__name__} of {count} row{'' if count == 1 else 's'}>"


def as_rows(value: Any) -> Rows | None:
    """Return data that are in memory as rows; `None` if it is a path or cannot be used."""
    if isinstance(value, str | bytes | Mapping | Set | Path | Rows) or not isinstance(value, Sized):
        return None
    if hasattr(value, "iloc") and hasattr(value, "notna"):
        return Rows(value, "pandas")
    if hasattr(value, "column_names") and hasattr(value, "features"):
        return Rows(value, "dataset")
    return Rows(value, "sequence") if isinstance(value, Iterable) else None


def rows_hint(value: Any) -> str:
    """Return what to pass instead of data that cannot be used; empty if nothing is known."""
    if isinstance(value, Mapping) and any(hasattr(each, "features") for each in value.values()):
        return f" Pass one of its splits: {', '.join(map(repr, value))}."
    if isinstance(value, Mapping):
        return ' Pass a list with a dict for each row: [{"text": ..., "label": ...}, ...].'
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return " Pass a list of its rows."
    return ""
