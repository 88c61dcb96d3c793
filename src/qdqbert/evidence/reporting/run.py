"""The report of `run`."""

from __future__ import annotations

import dataclasses

from qdqbert.evidence.reporting.document import Document, Section, Table, counted, short_name
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunReport(Report):
    """Result of `run`.

    Attributes:
        model: The folder.
        task: Its task.
        engine: Engine that ran it.
        target: Target of the graph.
        input: The input.
        output: The output.
        rows: Number of rows in the output; 0 if there was nothing to continue.
        skipped: Number of rows that could not be used.
        truncated: Number of rows whose text was longer than the model's limit.
        tokens: Number of tokens of all rows, without padding.
        resumed_rows: Number of rows, skipped ones included, that an earlier call had read.
        seconds: Wall time of this call, without loading the model.
        rows_per_second: Rows of this call per second.
        tokens_per_second: Tokens of this call per second.
        notices: Messages for the user.
    """

    model: str
    task: str
    engine: str
    target: str
    input: str
    output: str
    rows: int
    skipped: int
    truncated: int
    tokens: int
    resumed_rows: int
    seconds: float
    rows_per_second: float
    tokens_per_second: float
    notices: tuple[str, ...]

    def document(self) -> Document:
        """Return the numbers of rows and tokens, and the speed."""
        continued = ""
        if self.resumed_rows:
            continued = f" Continued after {counted(self.resumed_rows, 'row')}."
        columns = "rows {:,} | tokens {:,} | seconds {:.1f} | rows/s {:,.0f} | tokens/s {:,.0f}"
        speeds = (self.rows_per_second, self.tokens_per_second)
        table = Table(columns, [(self.rows, self.tokens, self.seconds, *speeds)])
        return Document(
            title=f"{short_name(self.model)}: {self.input} to {self.output}",
            summary=f"{self.model} ({self.task}) ran on {self.engine}, graph for "
            f"{self.target}.{continued}",
            sections=[Section("Speed", table=table)],
        )
