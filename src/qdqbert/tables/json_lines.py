"""Write .jsonl files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qdqbert.tables.rows import to_json


def write_objects(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as lines of a .jsonl file."""
    return "".join(f"{to_json(dict(row))}\n" for row in rows).encode()
