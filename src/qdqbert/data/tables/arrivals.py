"""Read a stream whose lines come slowly: know whether one is there, without waiting for it."""

from __future__ import annotations

import collections
import select
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

_T = TypeVar("_T")

Arrives = Callable[[float], bool]
"""Waits at most a number of seconds, and returns whether something can be read at once."""

_READ_BYTES = 1 << 16


class Arrivals:
    """The lines of a stream, such as stdin, with their line ends."""

    def __init__(self, stream: BinaryIO) -> None:
        """Keep the stream; nothing is read yet."""
        self._stream = stream
        self._lines: collections.deque[bytes] = collections.deque()
        self._rest = bytearray()
        self._has_ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while not self._lines:
            if self._has_ended:
                raise StopIteration
            self._read()
        return self._lines.popleft()

    def arrives(self, seconds: float) -> bool:
        """Return whether a whole line or the end is there; wait for it at most so many seconds."""
        deadline = time.monotonic() + seconds
        while not self._lines and not self._has_ended:
            if not self._is_readable(max(0.0, deadline - time.monotonic())):
                return False
            self._read()
        return True

    def _read(self) -> None:
        found = self._stream.read1(_READ_BYTES)  # type: ignore[attr-defined]
        self._has_ended = not found
        self._rest += found
        if b"\n" in found or self._has_ended:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._lines.extend(line + b"\n" for line in lines)
            self._rest = bytearray(rest)
        if self._has_ended and self._rest:
            self._lines.append(bytes(self._rest))

    def _is_readable(self, seconds: float) -> bool:
        try:
            return bool(select.select([self._stream], [], [], seconds)[0])
        except (OSError, ValueError):
            # It is no file, or Windows, which cannot wait for pipes: reading waits.
            return True


def bursts(rows: Iterator[_T], arrives: Arrives, seconds: float) -> Iterator[Iterator[_T]]:
    """Divide rows as they come.

    A burst ends when none is there, some seconds after its first row or later. Each has to be read
    to its end before the next one.
    """
    for first in rows:
        yield _burst(first, rows, arrives, seconds)


def _burst(first: _T, rows: Iterator[_T], arrives: Arrives, seconds: float) -> Iterator[_T]:
    deadline = time.monotonic() + seconds
    yield first
    while arrives(deadline - time.monotonic()):
        try:
            row = next(rows)
        except StopIteration:
            return
        yield row
