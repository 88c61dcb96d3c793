"""Read messages of protobuf without a description of their fields, field by field.

Source: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields_of(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message: an integer, or the bytes of all others.

    Args:
        message: Bytes, or a view of them. Those of fields are views of it.

    Raises:
        ValueError: The message is damaged.
    """
    if isinstance(message, int):
        raise ValueError("a message is a number")
    data, place = memoryview(message), 0
    while place < len(data):
        key, place = number_at(data, place)
        kind = key & 7
        if kind == 0:
            value, place = number_at(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = number_at(data, place)
        else:
            size = {1: 8, 5: 4}.get(kind, len(data) + 1)
        if size > len(data) - place:
            raise ValueError("a field does not fit into its message")
        yield key >> 3, data[place : place + size]
        place += size


def number_at(data: memoryview, place: int) -> tuple[int, int]:
    """Return the number at a place of a message, of up to 10 bytes, and the place after it.

    Raises:
        ValueError: It does not end.
    """
    found = shift = 0
    while place < len(data) and shift <= 63:
        byte = data[place]
        place += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, place
        shift += 7
    raise ValueError("a number does not end")


def text_of(value: memoryview | int) -> str:
    """Return a field that is a text.

    Raises:
        ValueError: It is a number, or no UTF-8.
    """
    if isinstance(value, int):
        raise ValueError("a text is a number")
    return bytes(value).decode()
