"""Run rows through a model, one window of the scheduler after another."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qdqbert.errors import DataFileError
from qdqbert.inference.model import Model
from qdqbert.inference.scheduler import Done, Job
from qdqbert.progress import Advance
from qdqbert.tables.outputs import Writer
from qdqbert.tables.rows import BadRow, Row

Numbered = tuple[int, Row | BadRow]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive rows of the input and their answers.

    Windows are the same whatever was run before, so that a resumed run gives the same bytes.

    Attributes:
        last: Index of the last row in the whole input, from 0.
        rows: The rows that have answers.
        answers: Answers by the names of columns, one for each of `rows`.
        bad: The other rows.
        tokens: Number of tokens.
        truncated: Number of rows that were cut.
    """

    last: int
    rows: list[Row]
    answers: list[Mapping[str, Any]]
    bad: list[BadRow]
    tokens: int
    truncated: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A window, with its rows and answers as they are written.

    Attributes:
        last: Index of the last row in the whole input, from 0.
        data: The rows and their answers, as `Writer.block` returns them; empty without rows.
        rows: Number of rows with answers.
        bad: The other rows.
        tokens: Number of tokens.
        truncated: Number of rows that were cut.
        position: How much of the input was read; see `Row`.
    """

    last: int
    data: bytes
    rows: int
    bad: list[BadRow]
    tokens: int
    truncated: int
    position: int = 0

    @classmethod
    def of(cls, window: Window, writer: Writer) -> Block:
        """Write the rows of a window."""
        return cls(
            last=window.last,
            data=writer.block(window.rows, window.answers) if window.rows else b"",
            rows=len(window.rows),
            bad=window.bad,
            tokens=window.tokens,
            truncated=window.truncated,
        )

    @classmethod
    def joined(cls, blocks: Sequence[Block]) -> Block:
        """Join consecutive blocks."""
        return cls(
            last=blocks[-1].last,
            data=b"".join(block.data for block in blocks),
            rows=sum(block.rows for block in blocks),
            bad=[row for block in blocks for row in block.bad],
            tokens=sum(block.tokens for block in blocks),
            truncated=sum(block.truncated for block in blocks),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowTask:
    """What happens to a row.

    Attributes:
        read: Returns the input of the job for a row, or the reason why there is none.
        job: The job of the model.
        answer: Returns the answers by the names of columns, from an answer of the job.
        reject: Called with a row that cannot be used; raises an error unless it can be skipped.
    """

    read: Callable[[Row], Any]
    job: Job[Any, Any]
    answer: Callable[[Any], Mapping[str, Any]]
    reject: Callable[[BadRow], None]


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a row cannot be used.

    Attributes:
        text: A phrase that follows "Line 3 of `file`: ".
    """

    text: str


class WindowedRun:
    """Answers rows in windows; what is read ahead of the answers is bounded.

    Attributes:
        waiting: Rows that were read and have no answer yet, with their indices.
    """

    def __init__(self, model: Model, task: RowTask, advance: Advance) -> None:
        """Keep the model and the task."""
        self.waiting: collections.deque[tuple[int, Row]] = collections.deque()
        self._bad: collections.deque[tuple[int, BadRow]] = collections.deque()
        self._model = model
        self._task = task
        self._advance = advance
        self._last = -1
        self._tokens = self._truncated = self._finished = self._position = 0

    def windows(self, rows: Iterable[Row | BadRow], start: int) -> Iterator[Window]:
        """Yield the windows of an input.

        Args:
            rows: All rows of the input that come after the first `start`.
            start: Number of rows that earlier windows contain.

        Raises:
            DataFileError: A row cannot be used.
        """
        self._last = start - 1
        taken: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        found = self._model.stream(
            self._task.job, self._items(rows, start), advance=self._count, continues=start > 0
        )
        for answer in found:
            index, row = self.waiting.popleft()
            self._finished -= 1
            taken.append(row)
            answers.append(self._task.answer(answer))
            if len(taken) == self._model.window:
                yield self._window(index, taken, answers)
                taken, answers = [], []
        if taken or self._bad:
            yield self._window(self._last, taken, answers)

    def _items(self, rows: Iterable[Row | BadRow], start: int) -> Iterator[Any]:
        for index, row in enumerate(rows, start=start):
            self._last = index
            item = Reason(row.reason) if isinstance(row, BadRow) else self._task.read(row)
            if isinstance(item, Reason):
                bad = BadRow(row.file, row.number, item.text, row.position)
                self._task.reject(bad)
                self._bad.append((index, bad))
            else:
                # Only rows without an answer are kept.
                assert isinstance(row, Row)
                self.waiting.append((index, row))
                yield item

    def _count(self, done: Done) -> None:
        self._tokens += done.tokens
        self._truncated += done.truncated
        self._finished += done.items
        if self._finished:
            self._position = self.waiting[self._finished - 1][1].position
        self._advance(rows=done.items, tokens=done.tokens, position=self._position)

    def _window(self, last: int, rows: list[Row], answers: list[Mapping[str, Any]]) -> Window:
        bad = []
        while self._bad and self._bad[0][0] <= last:
            bad.append(self._bad.popleft()[1])
        window = Window(
            last=last,
            rows=rows,
            answers=answers,
            bad=bad,
            tokens=self._tokens,
            truncated=self._truncated,
        )
        self._tokens = self._truncated = 0
        return window


def refuse(place: str, reason: str) -> DataFileError:
    """Return the error about a row that cannot be used."""
    return DataFileError(
        f"{place}: {reason}. Correct the row, or pass `on_error='skip'` to leave such rows out."
    )
