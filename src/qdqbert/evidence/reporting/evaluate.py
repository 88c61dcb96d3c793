"""The report of `evaluate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.findings import Storage
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.evidence.predictions import ChangedExample
from qdqbert.evidence.reporting.comparison import (
    TERMS,
    changed_sections,
    closeness,
    difference_digits,
    environment,
    limit_sections,
    metric_text,
    quality,
    unmet_text,
)
from qdqbert.evidence.reporting.document import (
    MEGABYTE,
    Document,
    Level,
    Section,
    counted,
    interval_text,
    short_name,
    span,
)
from qdqbert.evidence.reporting.findings import findings_sections
from qdqbert.evidence.reporting.graphs import latency_row
from qdqbert.evidence.reporting.report import Report
from qdqbert.evidence.reports import LatencyReport
from qdqbert.tasks.task import Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateReport(Report):
    """Result of `evaluate`.

    Attributes:
        model: The model.
        task: Its task.
        engine: Engine that ran it; `pytorch` for a checkpoint.
        target: Target of the graph; `None` for a checkpoint or an .onnx file.
        reference: The checkpoint or .onnx file that the model is compared with, if any.
        data: The data file; `built-in` for built-in sentences.
        examples: Number of examples.
        metrics: Metrics of the task; none without labels.
        reference_metrics: Metrics of the reference.
        differences: Metrics of the model minus the reference's.
        fidelity: How close the model is to the reference, on the same examples.
        limits: Check of each limit of the call.
        storage: How the weights of a quantized .onnx file are stored, and what is wrong with it.
            `None` for other models.
        latency: Latency of the model next to the reference's on the same engine, one entry for
            each shape; none if it was not measured.
        size_bytes: Size of the model: of its file, or of a checkpoint's weights in float32.
        reference_bytes: Size of the reference in the same way, if there is one.
        changed: Examples whose prediction is not the reference's, at most ten, the largest change
            first.
        leaked_examples: Number of examples that the model was calibrated or trained on.
        cpu: Name of the CPU.
        cpu_features: Its features that matter for INT8, under Linux' names.
        cores: Number of its cores that were used.
        versions: Versions of Python and of the packages that determine numbers, by name.
        command: Command line that is equivalent to the call.
        notices: Messages for the user.
        directory: The output folder; `None` if nothing was written.
        files: Names of the files in it.
    """

    model: str
    task: str
    engine: str
    target: str | None
    reference: str | None
    data: str
    examples: int
    metrics: tuple[Metric, ...]
    reference_metrics: tuple[Metric, ...]
    differences: tuple[MetricDifference, ...]
    fidelity: Fidelity | None
    limits: tuple[LimitCheck, ...]
    leaked_examples: int
    storage: Storage | None = None
    latency: tuple[LatencyReport, ...] = ()
    size_bytes: int | None = None
    reference_bytes: int | None = None
    changed: tuple[ChangedExample, ...] = ()
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    versions: Mapping[str, str]
    command: str
    notices: tuple[str, ...]
    directory: str | None = None
    files: tuple[str, ...] = ()

    @property
    def meets_limits(self) -> bool:
        """Whether all limits of the call are met."""
        return all(each.verdict == "met" for each in self.limits)

    def document(self) -> Document:
        """Return the report as text and tables."""
        graph = "" if self.target is None else f", graph for {self.target}"
        compared = "" if self.reference is None else f" It is compared with {self.reference}."
        close = closeness([self], self.task, "the reference")
        facts = [f"{each.name} {metric_text(each)}" for each in self.metrics[:1]]
        tiles = [(each.name, metric_text(each), "") for each in self.metrics[:1]]
        for each in self.differences[:1]:
            digits = difference_digits(each)
            value = f"{each.value:{digits}}"
            facts.append(f"{value} compared with the reference")
            tiles.append(("difference", value, interval_text(each.interval, digits)))
        if close is not None:
            tiles.append(close[0])
            facts.append(close[1])
        reference = "" if self.reference is None else "reference"
        table = quality({"model": self}, reference, self.reference_metrics, self.task)
        rows = [*table.rows, *map(latency_row, self.latency), *self._sizes()]
        table = dataclasses.replace(table, rows=rows)
        if self.latency:
            ratios = span([each.speedup for each in self.latency], ".2f")
            facts.append(f"{ratios} times as fast")
        if self.storage is not None:
            facts.append(counted(len(self.storage.findings), "finding"))
        measured = "The metrics of" if self.metrics else "Predictions of"
        level, verdict = self._verdict()
        return Document(
            title=f"{short_name(self.model)}: evaluation",
            summary=f"{measured} {self.task} on {counted(self.examples, 'example')} of "
            f"{self.data}. {self.model} ran on {self.engine}{graph}.{compared}",
            level=level,
            verdict=verdict,
            facts=facts,
            tiles=tiles,
            sections=[
                Section("Measurements", table=table.without_empty_columns()),
                *limit_sections({self.engine: self}),
                *findings_sections(self.storage, self.cpu_features),
                *changed_sections(
                    self.changed, "the reference and the model", ("reference", "model")
                ),
                environment(self.cpu, self.cpu_features, self.cores, self.versions),
                TERMS,
            ],
        )

    def _sizes(self) -> list[tuple[str, ...]]:
        """Return a row with the size of the model next to the reference's, if it is known."""
        if self.size_bytes is None:
            return []
        size = f"{self.size_bytes / MEGABYTE:.1f} MB"
        if self.reference_bytes is None:
            # Without a reference, there is no column for it.
            return [("size", size)] if self.reference is None else []
        share = self.size_bytes / self.reference_bytes
        return [("size", f"{self.reference_bytes / MEGABYTE:.1f} MB", f"{size} ({share:.2f})")]

    def _verdict(self) -> tuple[Level, str]:
        """Judge the model by its limits, if there are some."""
        if not self.meets_limits:
            return "bad", f"A limit is not met: {unmet_text([self])}"
        if self.leaked_examples:
            count = counted(self.leaked_examples, "example")
            return "doubtful", f"Inflated, as the model was calibrated or trained on {count}"
        if self.limits:
            return "good", "All limits are met"
        return "plain", f"Measured on {counted(self.examples, 'example')}"
