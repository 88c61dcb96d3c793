"""The report of `evaluate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.reporting.comparison import (
    TERMS,
    closeness,
    environment,
    limit_sections,
    quality,
    unmet_text,
)
from qdqbert.reporting.document import (
    Document,
    Level,
    Section,
    counted,
    interval_text,
    short_name,
)
from qdqbert.reporting.report import Report
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
        data: The data file.
        examples: Number of examples.
        metrics: Metrics of the task.
        reference_metrics: Metrics of the reference.
        differences: Metrics of the model minus the reference's.
        fidelity: How close the model is to the reference, on the same examples.
        limits: Check of each limit of the call.
        leaked_examples: Number of examples that the model was calibrated on.
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
        """Return what people read of the report."""
        graph = "" if self.target is None else f", graph for {self.target}"
        compared = "" if self.reference is None else f" It is compared with {self.reference}."
        close = closeness([self], self.task, "the reference")
        facts = [f"{each.name} {each.value:.2f}" for each in self.metrics[:1]]
        tiles = [(each.name, f"{each.value:.2f}", "") for each in self.metrics[:1]]
        for each in self.differences[:1]:
            facts.append(f"{each.value:+.2f} compared with the reference")
            tiles.append(("difference", f"{each.value:+.2f}", interval_text(each.interval, "+.2f")))
        if close is not None:
            tiles.append(close[0])
            facts.append(close[1])
        reference = "" if self.reference is None else "reference"
        table = quality({"model": self}, reference, self.reference_metrics, self.task)
        level, verdict = self._verdict()
        return Document(
            title=f"{short_name(self.model)}: evaluation",
            summary=f"The metrics of {self.task} on {counted(self.examples, 'example')} of "
            f"{self.data}. {self.model} ran on {self.engine}{graph}.{compared}",
            level=level,
            verdict=verdict,
            facts=facts,
            tiles=tiles,
            sections=[
                Section("Measurements", table=table),
                *limit_sections({self.engine: self}),
                environment(self.cpu, self.cpu_features, self.cores, self.versions),
                TERMS,
            ],
        )

    def _verdict(self) -> tuple[Level, str]:
        """Judge the model by its limits, if there are some."""
        if not self.meets_limits:
            return "bad", f"A limit is not met: {unmet_text([self])}"
        if self.leaked_examples:
            count = counted(self.leaked_examples, "example")
            return "doubtful", f"Inflated, as the model was calibrated on {count}"
        if self.limits:
            return "good", "All limits are met"
        return "plain", f"Measured on {counted(self.examples, 'example')}"
