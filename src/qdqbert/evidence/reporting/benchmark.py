"""The report of `benchmark`."""

from __future__ import annotations

import dataclasses

from qdqbert.evidence.latency import Timing
from qdqbert.evidence.reporting.document import Document, Section, Table, bar, counted
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkReport(Report):
    """Result of `benchmark`.

    Attributes:
        timings: One for each shape, model and engine, ordered by shape first.
        speedups: How many times faster each timing is than the first model's at the same shape,
            on the same engine; on the first engine if it does not run on this one, or is the only
            model.
        threads: Number of threads of one inference; `None` if each engine chose.
        notices: Messages for the user.
    """

    timings: tuple[Timing, ...]
    speedups: tuple[float, ...]
    threads: int | None
    notices: tuple[str, ...] = ()

    def document(self) -> Document:
        """Return the latencies and their ratios to the first model's."""
        rows = [
            (
                f"{each.batch} x {each.sequence}",
                each.name,
                each.engine,
                each.precision,
                bar(each.median_ms, "{:.2f} ms"),
                ratio,
            )
            for each, ratio in zip(self.timings, self.speedups, strict=True)
        ]
        columns = "batch x tokens | model | engine | float type | median {} | speed-up {:.2f} x"
        threads = "" if self.threads is None else f", {counted(self.threads, 'thread')}"
        section = Section(f"Median latency{threads}", table=Table(columns, rows))
        return Document(title="Benchmark", sections=[section])
