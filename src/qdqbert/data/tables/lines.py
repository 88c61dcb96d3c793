"""Read the lines of a UTF-8 file as they are needed: .txt, .jsonl and .ndjson files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from qdqbert.common.errors import DataFileError
from qdqbert.common.json_files import repeated
from qdqbert.data.tables.rows import BadRow, Header, Row, half_surrogate

# Name of the only column of a file whose lines are texts.
TEXT = "text"

# Levels of lists and objects in a row. Files of Parquet that have more cannot be read.
_MOST_LEVELS = 40

_NOT_UTF8 = "it is not UTF-8: byte 0x{byte:02x} at column {column}"


def other_encoding(start: bytes) -> str | None:
    """Return the encoding or format of a file that is not UTF-8, by its first line, or `None`."""
    if start.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "UTF-32"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    # In UTF-16 each second byte of English is zero.
    return "UTF-16 or no text" if 4 * start.count(0) > len(start) else None


def numbered_lines(
    name: str, stream: BinaryIO, position: BinaryIO
) -> Iterator[tuple[int, str, int]]:
    r"""Yield number (from 1), text and end of each line, with its line end.

    Only "\n" ends a line, because texts can contain U+2028 and similar characters. In a file
    without any "\n", which old programs wrote, "\r" does. Bytes that are not UTF-8 become
    surrogates, which `bad_byte` finds. A byte order mark is left out.

    Args:
        name: The file, as messages name it.
        stream: The content of the file.
        position: The file itself, whose position is the end of the line. It differs from `stream`
            in compressed files.

    Raises:
        DataFileError: The first line shows another encoding.
    """
    end = 0
    is_same = stream is position
    first = next(iter(stream), b"")
    wrong = other_encoding(first)
    if wrong is not None:
        raise DataFileError(f"File `{name}` must be UTF-8, got {wrong}. Save it as UTF-8.")
    lines = [first] if first.endswith(b"\n") else re.findall(rb"[^\r]*\r|[^\r]+", first)
    for number, raw in enumerate(itertools.chain(lines, stream), start=1):
        end = end + len(raw) if is_same else position.tell()
        text = raw.decode("utf-8", "surrogateescape")
        yield number, text.removeprefix("\ufeff") if number == 1 else text, end


def bad_byte(text: str) -> str | None:
    """Return the error in a decoded text that was not UTF-8, in words, or `None`."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        return _NOT_UTF8.format(byte=byte, column=error.start + 1)
    return None


def read_texts(name: str, stream: BinaryIO, position: BinaryIO) -> Iterator[Header | Row | BadRow]:
    """Yield each line of a file of texts."""
    yield Header((TEXT,))
    for number, text, end in numbered_lines(name, stream, position):
        reason = bad_byte(text)
        if reason is not None:
            yield BadRow(name, number, reason, end)
        else:
            yield Row(name, number, {TEXT: text.rstrip("\r\n")}, end)


def read_objects(name: str, stream: BinaryIO, position: BinaryIO) -> Iterator[Row | BadRow]:
    """Yield the object of each line that is not blank. A string is a row with the column `text`."""
    for number, text, end in numbered_lines(name, stream, position):
        if text.isspace():
            continue
        value, reason = json_value(text)
        if reason is None and not isinstance(value, dict | str):
            reason = f"it must be a JSON object or a string, got {kind_of(value)}"
        if text.count("[") + text.count("{") > _MOST_LEVELS and _is_deep(value):
            reason = f"it has lists or objects in one another, more than {_MOST_LEVELS} levels deep"
        if reason is not None:
            yield BadRow(name, number, reason, end)
        else:
            yield Row(name, number, {TEXT: value} if isinstance(value, str) else value, end)


def _is_deep(value: Any) -> bool:
    """Return whether a value of JSON has more levels than a row can have."""
    level = [value]
    for _ in range(_MOST_LEVELS + 1):
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
    return bool(level)


def json_value(text: str) -> tuple[Any, str | None]:
    """Return the JSON value in a line or a file, and what is wrong with it; `None` if nothing is.

    Half of a surrogate pair is wrong: Python's strings accept it, but tokenizers do not.
    """
    reason = bad_byte(text)
    if reason is not None:
        return None, reason
    try:
        value = json.loads(text.rstrip("\r\n"), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        return None, f"it is not JSON: {error.msg} at {_place(text, error.pos)}"
    except DataFileError as error:
        return None, str(error)
    except (ValueError, RecursionError) as error:
        return None, f"it is not JSON: {error}"
    half = half_surrogate(text)
    if half is not None:
        return None, (
            f"it contains half of a surrogate pair, {half[0]} at {_place(text, half.start())}, "
            "which is not a character"
        )
    return value, None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of JSON with these fields.

    Raises:
        DataFileError: Two fields have the same name, so that either could be meant.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = repeated([name for name, _ in pairs])
        raise DataFileError(f"it has two fields {twice!r}")
    return values


def kind_of(value: object) -> str:
    """Return how messages name the kind of a JSON value."""
    return "null" if value is None else type(value).__name__


def _place(text: str, position: int) -> str:
    """Return how messages refer to a character of a line, or of a file with several lines."""
    start = text.rfind("\n", 0, position) + 1
    line = text.count("\n", 0, start)
    return (
        f"line {line + 1}, character {position - start + 1}"
        if line
        else (f"character {position + 1}")
    )
