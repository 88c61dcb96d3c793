"""The report of `quantize`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from qdqbert.evidence.lengths import TextLengths
from qdqbert.evidence.reporting import graphs
from qdqbert.evidence.reporting.candidates import candidate_sections, chosen_winner
from qdqbert.evidence.reporting.comparison import (
    TERMS,
    can_show_closeness,
    changed_sections,
    closeness,
    environment,
    limit_sections,
    metric_text,
    quality,
)
from qdqbert.evidence.reporting.document import (
    MEGABYTE,
    Document,
    Level,
    Section,
    counted,
    digits_of,
    short_name,
    span,
)
from qdqbert.evidence.reporting.graphs import Winner, by_speed, find_winner, graph_name
from qdqbert.evidence.reporting.report import Report
from qdqbert.evidence.reports import CandidateReport, TargetReport
from qdqbert.tasks.task import Metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeReport(Report):
    """Result of `quantize`.

    Attributes:
        directory: The output folder; `None` if a limit is not met, as nothing is written then.
        checkpoint: The model that was quantized.
        task: Its task.
        calibration_texts: Number of texts that ranges were taken from.
        calibration_lengths: Their lengths; `None` if the ranges are from an earlier calibration.
        heldout_texts: Number of other texts, on which fidelity was measured.
        float_metrics: Metrics of the float model, if the texts have labels.
        float_size_bytes: Size of the float graph.
        targets: One report for each target and engine. With the target `auto`, the chosen
            candidate's report, or all of them if none was chosen.
        cpu: Name of the CPU that all measurements are from.
        cpu_features: Its features that matter for INT8, under Linux' names.
        cores: Number of its cores that were used.
        versions: Versions of Python and of the packages that determine numbers, by name.
        command: Command line that is equivalent to the call.
        warnings: Results that make the model doubtful or useless.
        notices: Other messages for the user.
        candidates: Candidates of the target `auto`, the fastest one first.
        reason: Why it chose that one, in words; `None` for other targets.
        call: An example of a call of the model, in Python; `None` if `load` does not run it.
    """

    directory: str | None
    checkpoint: str
    task: str
    calibration_texts: int
    calibration_lengths: TextLengths | None
    heldout_texts: int
    float_metrics: tuple[Metric, ...]
    float_size_bytes: int
    targets: tuple[TargetReport, ...]
    cpu: str
    cpu_features: tuple[str, ...]
    cores: int
    versions: Mapping[str, str]
    command: str
    warnings: tuple[str, ...]
    notices: tuple[str, ...]
    candidates: tuple[CandidateReport, ...] = ()
    reason: str | None = None
    call: str | None = None

    @property
    def meets_limits(self) -> bool:
        """Whether every graph meets all limits of the call on every engine.

        With the target `auto`, whether one could be chosen.
        """
        if self.candidates:
            return any(each.verdict == "chosen" for each in self.candidates)
        return all(each.meets_limits for each in self.targets)

    @property
    def winner(self) -> Winner | None:
        """The fastest graph; `None` if nothing was timed."""
        return chosen_winner(self.candidates) if self.candidates else find_winner(self.targets)

    @property
    def _shown(self) -> Sequence[TargetReport]:
        """The fastest graph, whose numbers stand beside its speed; all if none was timed."""
        best = self.winner
        return [each for each in self.targets if best and graph_name(each) == best.name] or (
            self.targets
        )

    @property
    def codes(self) -> str:
        """The widths of the codes of all graphs: "INT8", or "W4A8" for weights of 4 bits."""
        return " and ".join(dict.fromkeys(each.codes for each in self.targets)) or "INT8"

    def document(self) -> Document:
        """Return the report as text and tables, the fastest graph first."""
        targets = by_speed(self.targets)
        models = {graph_name(each): each for each in targets}
        sections = self._usage()
        if targets:
            text = (
                f"Both models answered {counted(self.heldout_texts, 'text')} that were not used to "
                "calibrate. In parentheses is the interval at a confidence of 95 %."
            )
            table = quality(models, "float", self.float_metrics, self.task)
            sections += [
                Section("Is it as good as the float model?", text, table.without_empty_columns()),
                *limit_sections(models),
                graphs.speed(targets, self.float_size_bytes),
                *graphs.recall_sections(targets),
                *candidate_sections(self.candidates, self.reason),
                *changed_sections(
                    targets[0].changed,
                    f"float and {graph_name(targets[0])}",
                    ("float", targets[0].codes),
                ),
                graphs.checks(targets),
                *graphs.layer_sections(targets),
            ]
        place = environment(self.cpu, self.cpu_features, self.cores, self.versions)
        level, verdict = self._verdict()
        return Document(
            title=f"{short_name(self.checkpoint)} in {self.codes}",
            summary=self._summary(),
            level=level,
            verdict=verdict,
            facts=self._facts(),
            tiles=self._tiles(),
            sections=(*sections, *graphs.length_sections(self.calibration_lengths), place, TERMS),
        )

    def _summary(self) -> str:
        made = (
            f"{self.checkpoint} ({self.task}) was quantized to {self.codes}. Its ranges were taken "
            f"from {counted(self.calibration_texts, 'text')}."
        )
        if not self.targets:
            return f"{made} No engine that is installed here runs its graphs."
        names = ", ".join(dict.fromkeys(graph_name(each) for each in by_speed(self.targets)))
        heldout = counted(self.heldout_texts, "other text")
        return f"{made} {self.codes} is compared with float on {heldout}, on {self.cpu}: {names}."

    def _facts(self) -> list[str]:
        """Return the numbers behind the verdict."""
        best, close = self.winner, closeness(self._shown, self.task, "float")
        if close is None:
            return []
        ratios = [100 * each.size_ratio for each in self._shown]
        facts = [close[1], f"{span(ratios, '.0f')} % of the size"]
        if best is not None and best.ratio is not None:
            facts.insert(0, f"{best.ratio:.1f} times as fast on {best.engine}")
        return facts

    def _verdict(self) -> tuple[Level, str]:
        """Judge all graphs together."""
        has_limits = any(each.limits for each in self.targets)
        if not self.targets:
            return "doubtful", "Nothing was measured"
        if not self.meets_limits:
            if has_limits:
                return "bad", f"Nothing was written: {graphs.unmet_text(self.targets)}"
            # Without limits, the target `auto` rejects candidates by their fidelity alone.
            reason = (self.reason or "").removesuffix(".")
            return "bad", f"{reason}, so nothing was written"
        if self.warnings or not all(each.lowering.is_exact for each in self.targets):
            return "doubtful", "Read the warnings and notes before you use it"
        if has_limits:
            return "good", "All limits are met"
        if not all(can_show_closeness(each) for each in self.targets):
            return "doubtful", f"Too few texts to tell whether {self.codes} is close to float"
        return "good", f"{self.codes} is close to float"

    def _tiles(self) -> list[tuple[str, str, str]]:
        """Return the most important numbers: speed, metric, closeness and size."""
        size = f"{self.float_size_bytes / MEGABYTE:.1f} MB"
        best, shown = self.winner, self._shown
        close = closeness(shown, self.task, "float")
        if close is None:
            return [("size in float", size, "")]
        tiles = []
        if best is not None and best.ratio is not None:
            note = f"as fast as float on {best.reference}, its best engine here"
            title = "fastest" if best.is_fastest else "chosen"
            tiles.append((f"{title}: {best.name}", f"{best.ratio:.1f} x", note))
        if shown[0].metrics:
            first = shown[0].metrics[0]
            [known] = [each for each in self.float_metrics if each.name == first.name]
            values = [each.metrics[0].value for each in shown]
            digits = digits_of(values, is_error=first.is_error)
            tiles.append((first.name, span(values, digits), f"float: {metric_text(known)}"))
        ratios = span([100 * each.size_ratio for each in shown], ".0f")
        sizes = span([each.size_bytes / MEGABYTE for each in shown], ".1f")
        note = f"float {size}, {self.codes} {sizes} MB"
        return [*tiles, close[0], ("size compared with float", f"{ratios} %", note)]

    def _usage(self) -> list[Section]:
        """Show which graph is the fastest, and the lines that run the folder, if `load` does."""
        if self.directory is None or self.call is None:
            return []
        load = f"model = qdqbert.load({self.directory!a})"
        # No shell takes a line break in a name.
        serves = self.directory.isprintable()
        best = self.winner
        engines = {each.engine for each in self.targets} if best is None else {best.engine}
        extras = ["openvino"] * (engines == {"openvino"}) + ["serve"] * serves
        package = f"'qdqbert[{','.join(extras)}]'" if extras else "qdqbert"
        lines = [f"pip install {package}", "", "import qdqbert", load, f"print({self.call})"]
        text = f"{self._speed()} The lines of Python run the model."
        if serves:
            text = f"{text[:-1]}, and the last command answers requests over HTTP."
            lines += ["", f"qdqbert serve {shlex.quote(self.directory)}"]
        code = "\n".join(lines)
        return [Section("How to run it", text, code=code)]

    def _speed(self) -> str:
        """Say which graph is the fastest and by how much, or how to measure it."""
        best = self.winner
        if best is None:
            return f"No speed was measured. To measure it: `qdqbert benchmark {self.directory}`."
        if self.candidates and self.reason:
            return self.reason
        return (
            f"The fastest here is {best.name}: {best.ratio:.2f} x as fast as the float model on "
            f"its best engine, {best.reference}."
        )
