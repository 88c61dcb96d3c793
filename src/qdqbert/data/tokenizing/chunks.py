"""Few texts at a time: encodings of the library take about a hundred times the memory of ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

# Larger chunks take a tenth longer: their encodings leave the cache before they are freed.
_CHUNK_SIZE = 128

_T = TypeVar("_T")


def in_chunks(items: Sequence[_T]) -> Iterator[list[_T]]:
    """Yield lists of items that are tokenized together."""
    for start in range(0, len(items), _CHUNK_SIZE):
        yield list(items[start : start + _CHUNK_SIZE])
