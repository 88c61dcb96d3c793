"""Run rows through a model, one window of the scheduler after another."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.progress import Advance
from qdqbert.data.tables.outputs import Writer
from qdqbert.data.tables.rows import BadRow, Row
from qdqbert.runtime.model import Model
from qdqbert.runtime.scheduler import Done
from qdqbert.verbs.run.columns import Columns
from qdqbert.verbs.run.options import RunOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Numbers of a run, or of a part of it.

    Attributes:
        rows: Number of rows with answers.
        skipped: Number of other rows.
        truncated: Number of rows that were cut.
        tokens: Number of tokens.
    """

    rows: int = 0
    skipped: int = 0
    truncated: int = 0
    tokens: int = 0

    @property
    def read(self) -> int:
        """Number of rows of the input."""
        return self.rows + self.skipped

    def __add__(self, other: Totals) -> Totals:
        """Return the numbers of two parts together."""
        more = dataclasses.asdict(other)
        return Totals(**{name: value + more[name] for name, value in vars(self).items()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """The answers to a window: consecutive rows, as many as the model runs together.

    Windows are the same whatever was run before, so that a resumed run gives the same bytes.

    Attributes:
        data: The rows and their answers, as `Writer.block` returns them; empty without rows.
        bad: Rows that have no answers.
        last: The last row: its file, its number or that of its last line, and its position.
    """

    data: bytes
    totals: Totals
    bad: list[BadRow]
    last: tuple[str, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRun:
    """How rows are read, answered and written.

    Attributes:
        columns: Columns that are read and written.
    """

    model: Model
    columns: Columns
    writer: Writer
    options: RunOptions

    def blocks(
        self,
        rows: Iterable[Row | BadRow],
        *,
        continues: bool,
        reject: Callable[[BadRow], None] = lambda row: None,
        advance: Advance = lambda **done: None,
    ) -> Iterator[Block]:
        """Yield the answers to each window of rows. A limited number of rows is read ahead.

        Rows that cannot be used go through the model's stream, too, so that each window has the
        same number of rows, however many of them are bad.

        Args:
            rows: The rows.
            continues: Whether other windows of the same input were answered before.
            reject: Called with a row that cannot be used; raises an error unless it can be skipped.
            advance: Called after each batch, and with the bytes of each window.
        """
        entry = self.columns.entry
        names = [each.name for each in self.columns.layout.answers]
        # Rows that were read and have no answer yet.
        waiting: collections.deque[Row | BadRow] = collections.deque()
        finished = tokens = truncated = position = 0

        def item(row: Row | BadRow) -> Any:
            """Return the input of the job for a row, or why there is none."""
            waiting.append(row)
            if isinstance(row, BadRow):
                return DataFileError(row.reason)
            try:
                return self.columns.read(row)
            except DataFileError as error:
                return error

        def count(done: Done) -> None:
            nonlocal finished, tokens, truncated, position
            tokens += done.tokens
            truncated += done.truncated
            finished += done.items
            if finished:
                position = waiting[finished - 1].position
            advance(rows=done.items, tokens=done.tokens, position=position)

        def block() -> Block:
            nonlocal tokens, truncated
            skipped = sum(each.rows for each in bad)
            totals = Totals(rows=len(taken), skipped=skipped, truncated=truncated, tokens=tokens)
            tokens = truncated = 0
            data = self.writer.block(taken, answers) if taken else b""
            advance(rows=0, tokens=0, position=position, written=len(data))
            last = row.file, row.last or row.number, row.position
            return Block(data=data, totals=totals, bad=bad, last=last)

        taken: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        bad: list[BadRow] = []
        found: Iterator[Any] = self.model.stream(
            entry.job(self.model, self.options),
            map(item, rows),
            advance=count,
            continues=continues,
            return_errors=True,
        )
        for answer in found:
            row = waiting.popleft()
            finished -= 1
            if isinstance(answer, UserInputError):
                reason = str(answer).rstrip(".")
                rows_lost = row.rows if isinstance(row, BadRow) else 1
                lost = BadRow(row.file, row.number, reason, row.position, row.last, rows_lost)
                bad.append(lost)
                reject(bad[-1])
            else:
                assert isinstance(row, Row)
                taken.append(row)
                values = entry.values(answer, self.options)
                answers.append(dict(zip(names, values, strict=True)))
            if len(taken) + len(bad) == self.model.window:
                yield block()
                taken, answers, bad = [], [], []
        if taken or bad:
            yield block()
