"""Read the lines of a UTF-8 file as they are needed: .txt, .jsonl and .ndjson files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from qdqbert.common.errors import DataFileError
from qdqbert.common.json_files import repeated
from qdqbert.data.tables.rows import After, BadRow, Header, Row, half_surrogate

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


class Lines:
    r"""The lines of a file: number (from 1), text and end of each, with its line end.

    Only "\n" ends a line, because texts can contain U+2028 and similar characters. In a file
    without any "\n", which old programs wrote, "\r" does. Bytes that are not UTF-8 become
    surrogates, which `bad_byte` finds. A byte order mark is left out.

    Attributes:
        name: The file, as messages name it.
        shift: Number of lines that `jump` left out.
    """

    def __init__(
        self,
        name: str,
        stream: BinaryIO,
        position: BinaryIO,
        *,
        size: int | None = None,
        after: After | None = None,
    ) -> None:
        """Prepare to read a file.

        Args:
            name: The file, as messages name it.
            stream: The content of the file.
            position: The file itself, whose position is the end of the line. It differs from
                `stream` in compressed files.
            size: Bytes that are read of a file that may grow; all by default.
            after: The place that `jump` goes to.
        """
        self.name = name
        self.shift = 0
        self._stream, self._position = stream, position
        self._size = size
        self._after = after
        self._jumps = False
        self._found = self._read()

    def __iter__(self) -> Iterator[tuple[int, str, int]]:
        """Yield the lines.

        Raises:
            DataFileError: The first line shows another encoding, or the file has grown while its
                last line was written.
        """
        return self._found

    def jump(self) -> None:
        """Leave out the next lines up to the place `after`, if the file can be read from there."""
        self._jumps = self._after is not None and self._stream is self._position

    def _read(self) -> Iterator[tuple[int, str, int]]:
        stream, is_same = self._stream, self._stream is self._position
        size = self._size if is_same else None
        first = next(iter(stream), b"")
        wrong = other_encoding(first)
        if wrong is not None:
            raise DataFileError(f"File `{self.name}` must be UTF-8, got {wrong}. Save it as UTF-8.")
        start = [first] if first.endswith(b"\n") else re.findall(rb"[^\r]*\r|[^\r]+", first)
        lines: Iterator[bytes] = itertools.chain(start, stream)
        number = end = 0
        while True:
            if self._jumps:
                self._jumps = False
                if self._goes_on(stream):
                    assert self._after is not None
                    self.shift = self._after.number - number
                    number, end = self._after.number, self._after.position
                    lines = iter(stream)
            raw = next(lines, None)
            if raw is None or (size is not None and end >= size):
                return
            number += 1
            if size is not None and end + len(raw) > size:
                raw = self._cut(raw, size - end, number)
            end = end + len(raw) if is_same else self._position.tell()
            text = raw.decode("utf-8", "surrogateescape")
            yield number, text.removeprefix("\ufeff") if number == 1 else text, end

    def _goes_on(self, stream: BinaryIO) -> bool:
        """Move to the place `after` if it is the end of a line."""
        assert self._after is not None
        here = stream.tell()
        stream.seek(self._after.position - 1)
        is_end = stream.read(1) == b"\n"
        if not is_end:
            stream.seek(here)
        return is_end

    def _cut(self, raw: bytes, length: int, number: int) -> bytes:
        """Return the part of a line that was there when the file was found."""
        if raw[length:].strip(b"\r\n"):
            raise DataFileError(
                f"Line {number} of `{self.name}` was not complete when the run began, and the file "
                "has grown. Wait until it is written, and run it again."
            )
        return raw[:length]


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


def read_texts(lines: Lines) -> Iterator[Header | Row | BadRow]:
    """Yield each line of a file of texts."""
    name = lines.name
    yield Header((TEXT,))
    lines.jump()
    for number, text, end in lines:
        reason = bad_byte(text)
        if reason is not None:
            yield BadRow(name, number, reason, end)
        else:
            yield Row(name, number, {TEXT: text.rstrip("\r\n")}, end)


def read_objects(lines: Lines) -> Iterator[Row | BadRow]:
    """Yield the object of each line that is not blank. A string is a row with the column `text`."""
    name = lines.name
    lines.jump()
    for number, text, end in lines:
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
        value = _DECODER.decode(text.rstrip("\r\n"))
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


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


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
