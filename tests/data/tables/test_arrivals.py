"""Lines of a stream are divided as they come."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest

from qdqbert.data.tables.arrivals import Arrivals, bursts


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, Any]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream, os.fdopen(writer, "wb", buffering=0) as source:
        yield stream, source


@pytest.mark.parametrize(
    "content",
    [b"", b"a", b"a\n", b"a\n\nb\r\nc", b"\n", b"x" * 200_000 + b"\n" + b"y" * 70_000, b"a\rb\n"],
)
def test_lines_are_those_of_the_stream(content) -> None:
    assert list(Arrivals(io.BytesIO(content))) == list(io.BytesIO(content))


def test_a_line_is_there_when_it_has_ended(pipe) -> None:
    stream, source = pipe
    lines = Arrivals(stream)
    assert not lines.arrives(0)
    source.write(b"a")
    assert not lines.arrives(0)
    source.write(b"b\nc\nd")
    assert lines.arrives(0)
    assert [next(lines), next(lines)] == [b"ab\n", b"c\n"]
    assert not lines.arrives(0)
    source.close()
    assert lines.arrives(0)
    assert list(lines) == [b"d"]
    assert lines.arrives(0)


def test_a_stream_that_cannot_be_waited_for_is_read() -> None:
    assert Arrivals(io.BytesIO(b"a\n")).arrives(0)


def test_a_burst_has_the_rows_that_are_there(pipe) -> None:
    stream, source = pipe
    lines = Arrivals(stream)
    found = bursts(lines, lines.arrives, 0)
    source.write(b"a\nb\n")
    assert list(next(found)) == [b"a\n", b"b\n"]
    source.write(b"c\n")
    burst = next(found)
    assert next(burst) == b"c\n"
    source.write(b"d\n")
    source.close()
    assert list(burst) == [b"d\n"]
    assert list(found) == []
