"""The report of `train`."""

from __future__ import annotations

import dataclasses

from qdqbert.evidence.reporting.comparison import metric_text
from qdqbert.evidence.reporting.document import Cell, Document, Section, Table, counted, short_name
from qdqbert.evidence.reporting.report import Report
from qdqbert.tasks.task import Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainReport(Report):
    """Result of `train`.

    Attributes:
        directory: The output folder.
        checkpoint: The model that was trained.
        task: Its task.
        training_examples: Number of training examples.
        evaluation_examples: Number of evaluation examples.
        quantizers: Number of enabled quantizers; 0 in float training.
        steps: Number of updates of the weights.
        resumed_at: Step from which the run was resumed, if it was.
        before: Metrics before training. With QAT, the calibrated model's.
        after: Metrics of the model that was written.
        notices: Messages for the user.
    """

    directory: str
    checkpoint: str
    task: str
    training_examples: int
    evaluation_examples: int
    quantizers: int
    steps: int
    resumed_at: int | None
    before: tuple[Metric, ...]
    after: tuple[Metric, ...]
    notices: tuple[str, ...]

    def document(self) -> Document:
        """Return the metrics before and after training."""
        kind = f"QAT with {self.quantizers} quantizers" if self.quantizers else "float training"
        hint = "" if self.after else " Pass `eval_data` to see metrics."
        before = "calibrated, before training" if self.quantizers else "before training"
        columns = f" | {before} {{}} | after training {{}}"
        rows = [
            (old.name, *(Cell(text=metric_text(each), value=each.value) for each in (old, new)))
            for old, new in zip(self.before, self.after, strict=True)
        ]
        section = Section("Did it learn?", table=Table(columns, rows))
        return Document(
            title=f"{short_name(self.checkpoint)}: {kind}",
            summary=f"{self.checkpoint} ({self.task}) was trained on "
            f"{counted(self.training_examples, 'example')} in "
            f"{counted(self.steps, 'step')}.{hint}",
            sections=[section] if rows else [],
        )
