"""Run rows through a model, one window of the scheduler after another."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qdqbert.errors import DataFileError, UserInputError
from qdqbert.inference.model import Model
from qdqbert.inference.scheduler import Done, Job
from qdqbert.progress import Advance
from qdqbert.tables.outputs import Writer
from qdqbert.tables.rows import BadRow, Row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive rows of the input, as many as the model runs together, and their answers.

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
        read: Returns the input of the job for a row. Raises `DataFileError` if there is none.
        job: The job of the model.
        answer: Returns the answers by the names of columns, from an answer of the job.
        reject: Called with a row that cannot be used; raises an error unless it can be skipped.
    """

    read: Callable[[Row], Any]
    job: Job[Any, Any]
    answer: Callable[[Any], Mapping[str, Any]]
    reject: Callable[[BadRow], None]


class WindowedRun:
    """Answers rows in windows; what is read ahead of the answers is bounded.

    Rows that cannot be used go through the model's stream, too, so that each window has the same
    number of rows, however many of them are bad.

    Attributes:
        waiting: Rows that were read and have no answer yet.
    """

    def __init__(self, model: Model, task: RowTask, advance: Advance) -> None:
        """Keep the model and the task."""
        self.waiting: collections.deque[Row | BadRow] = collections.deque()
        self._model = model
        self._task = task
        self._advance = advance
        self._tokens = self._truncated = self._finished = self._position = 0

    def windows(self, rows: Iterable[Row | BadRow], start: int) -> Iterator[Window]:
        """Yield the windows of an input.

        Args:
            rows: All rows of the input that come after the first `start`.
            start: Number of rows that earlier windows contain.

        Raises:
            DataFileError: A row cannot be used.
        """
        taken: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        bad: list[BadRow] = []
        last = start - 1
        found: Iterator[Any] = self._model.stream(
            self._task.job,
            map(self._item, rows),
            advance=self._count,
            continues=start > 0,
            return_errors=True,
        )
        for last, answer in enumerate(found, start=start):
            row = self.waiting.popleft()
            self._finished -= 1
            if isinstance(answer, UserInputError):
                bad.append(self._rejected(row, answer))
            else:
                assert isinstance(row, Row)
                taken.append(row)
                answers.append(self._task.answer(answer))
            if len(taken) + len(bad) == self._model.window:
                yield self._window(last, taken, answers, bad)
                taken, answers, bad = [], [], []
        if taken or bad:
            yield self._window(last, taken, answers, bad)

    def _item(self, row: Row | BadRow) -> Any:
        """Return the input of the job for a row, or why there is none."""
        self.waiting.append(row)
        try:
            return DataFileError(row.reason) if isinstance(row, BadRow) else self._task.read(row)
        except DataFileError as error:
            return error

    def _rejected(self, row: Row | BadRow, error: UserInputError) -> BadRow:
        bad = BadRow(row.file, row.number, str(error).rstrip("."), row.position)
        self._task.reject(bad)
        return bad

    def _count(self, done: Done) -> None:
        self._tokens += done.tokens
        self._truncated += done.truncated
        self._finished += done.items
        if self._finished:
            self._position = self.waiting[self._finished - 1].position
        self._advance(rows=done.items, tokens=done.tokens, position=self._position)

    def _window(
        self,
        last: int,
        rows: list[Row],
        answers: list[Mapping[str, Any]],
        bad: list[BadRow],
    ) -> Window:
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
