"""The report of `analyze`."""

from __future__ import annotations

import dataclasses

from qdqbert.evidence.reporting.document import (
    Document,
    Section,
    Table,
    counted,
    decibels,
    digits_of,
    short_name,
)
from qdqbert.evidence.reporting.report import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of quantization, on the examples of a call.

    Attributes:
        sqnr_db: SQNR of the output, in dB; infinite if it is equal.
        flips_percent: Share of decisions that differ from the float model's, in percent. `None` for
            tasks without decisions.
        drop: Loss of the main metric, in its unit. `None` without labels.
        is_error: Whether the metric is an error, which can have any unit.
    """

    sqnr_db: float
    flips_percent: float | None
    drop: float | None
    is_error: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitReport:
    """The cost of a layer, of a linear layer or of a site.

    Attributes:
        name: Its name.
        sites: Its sites.
        share_percent: Its share of all int8 multiplications, in percent.
        alone: The cost if nothing else is quantized.
        left: The cost that is left if this unit and all units before it stay in float.
    """

    name: str
    sites: tuple[str, ...]
    share_percent: float
    alone: Cost
    left: Cost


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalyzeReport(Report):
    """Result of `analyze`.

    Attributes:
        model: The float model.
        task: Its task.
        target: Target whose quantizers were analyzed.
        recipe: Recipe that placed them.
        metric: Name of the main metric; `None` without labels.
        examples: Number of measured examples.
        whole: The cost of quantizing everything.
        units: The units, the most costly one first.
        notices: Messages for the user.
    """

    model: str
    task: str
    target: str
    recipe: str
    metric: str | None
    examples: int
    whole: Cost
    units: tuple[UnitReport, ...]
    notices: tuple[str, ...]

    def document(self) -> Document:
        """Return the costs of the units, the most costly one first."""
        metric = self.metric
        rows: list[tuple[str, float, str, str]] = [
            ("everything", 100.0, _cost(self.whole, metric), ""),
            *(
                (each.name, each.share_percent, _cost(each.alone, metric), _cost(each.left, metric))
                for each in self.units
            ),
        ]
        columns = (
            "quantized | share of int8 {:.1f} % | alone {} | "
            "the rest, if this and all above stay in float {}"
        )
        return Document(
            title=f"{short_name(self.model)}: cost of quantization",
            summary=f"{self.model} ({self.task}) was quantized with recipe {self.recipe} for "
            f"{self.target}, and compared with float on {counted(self.examples, 'example')}.",
            sections=[Section("What does each part cost?", table=Table(columns, rows))],
        )


def _cost(cost: Cost, metric: str | None) -> str:
    """Return a cost in words: "31.2 dB, 1.50 % changed, f1 -0.21"."""
    words = [decibels(cost.sqnr_db)]
    if cost.flips_percent is not None:
        words.append(f"{cost.flips_percent:.2f} % changed")
    if cost.drop is not None:
        # More of an error is a loss.
        change = (cost.drop if cost.is_error else -cost.drop) + 0.0
        words.append(f"{metric} {change:+{digits_of([change], is_error=cost.is_error)}}")
    return ", ".join(words)
