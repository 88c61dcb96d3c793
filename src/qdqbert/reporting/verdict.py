"""The result of a call in one line: whether the model is good, how fast and how large it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from qdqbert.evidence.fidelity import Fidelity
from qdqbert.evidence.limits import LimitCheck
from qdqbert.evidence.reports import EvaluateReport, QuantizeReport
from qdqbert.reporting.facts import counted
from qdqbert.reporting.usage import winner

Level = Literal["good", "doubtful", "bad", "plain"]
"""Whether a model can be used. `plain`: the report does not judge it."""

# What each limit is about, and its unit.
_LIMITED: Mapping[str, tuple[str, str]] = {
    "max_drop": ("loss of the main metric", ""),
    "max_flips": ("changed predictions", " %"),
    "min_sqnr": ("SQNR", " dB"),
    "min_cosine": ("lowest cosine", ""),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a call in one line.

    Attributes:
        level: Whether the model can be used.
        judgement: What is good or bad.
        facts: The numbers behind it.
    """

    level: Level
    judgement: str
    facts: tuple[str, ...]


def quantize_verdict(report: QuantizeReport) -> Verdict:
    """Judge the graphs that `quantize` made, all of them together."""
    facts = _fidelity_facts([each.fidelity for each in report.targets], "float")
    best = winner(report)
    if best is not None and best.ratio is not None:
        facts.insert(0, f"{best.ratio:.1f} times as fast on {best.engine}")
    if report.targets:
        ratios = [100 * each.size_ratio for each in report.targets]
        facts.append(f"{span(ratios, '.0f')} % of the size")
    level, judgement = _quantize_judgement(report)
    return Verdict(level=level, judgement=judgement, facts=tuple(facts))


def _quantize_judgement(report: QuantizeReport) -> tuple[Level, str]:
    checks = [check for each in report.targets for check in each.limits]
    if not report.targets:
        return "doubtful", "Nothing was measured"
    if not report.meets_limits:
        if checks:
            return "bad", f"Nothing was written: {_unmet(checks)}"
        # Without limits, the target `auto` rejects candidates by their fidelity alone.
        reason = (report.reason or "").removesuffix(".")
        return "bad", f"{reason}, so nothing was written"
    if report.warnings or not all(each.lowering.is_exact for each in report.targets):
        return "doubtful", "Read the warnings and notes before you use it"
    return "good", "All limits are met" if checks else "INT8 is close to float"


def evaluate_verdict(report: EvaluateReport) -> Verdict:
    """Judge an evaluated model by its limits, if there are some."""
    facts = [f"{each.name} {each.value:.2f}" for each in report.metrics[:1]]
    facts += [f"{each.value:+.2f} compared with the reference" for each in report.differences[:1]]
    if report.fidelity is not None:
        facts += _fidelity_facts([report.fidelity], "the reference")
    level, judgement = _evaluate_judgement(report)
    return Verdict(level=level, judgement=judgement, facts=tuple(facts))


def _evaluate_judgement(report: EvaluateReport) -> tuple[Level, str]:
    if not report.meets_limits:
        return "bad", f"A limit is not met: {_unmet(report.limits)}"
    if report.leaked_examples:
        count = counted(report.leaked_examples, "example")
        return "doubtful", f"Inflated, as the model was calibrated on {count}"
    if report.limits:
        return "good", "All limits are met"
    return "plain", f"Measured on {counted(report.examples, 'example')}"


def _unmet(checks: Sequence[LimitCheck]) -> str:
    """Return a sentence about the first limit that is missed, or else not shown."""
    unmet = [check for check in checks if check.verdict != "met"]
    worst = min(unmet, key=lambda check: check.verdict != "missed")
    if worst.verdict == "missed":
        return f"{limit_text(worst)} is missed"
    return f"too few examples to show {limit_text(worst)}"


def limit_text(check: LimitCheck) -> str:
    """Return a limit in words: "changed predictions of at most 2 %"."""
    name, unit = _LIMITED[check.option]
    bound = "at most" if check.option.startswith("max") else "at least"
    return f"{name} of {bound} {check.limit:g}{unit}"


def _fidelity_facts(fidelities: Sequence[Fidelity], reference: str) -> list[str]:
    """Say how close some models are to a reference, by what users of the task notice."""
    flips = [each.flips_percent for each in fidelities if each.flips_percent is not None]
    if flips:
        return [f"{span(flips, '.2f')} % of the predictions changed"]
    cosines = [each.cosine_mean for each in fidelities if each.cosine_mean is not None]
    if cosines:
        return [f"mean cosine to {reference} {span(cosines, '.4f')}"]
    if fidelities:
        return [f"SQNR to {reference} {span([each.sqnr_db for each in fidelities], '.1f')} dB"]
    return []


def span(values: Sequence[float], digits: str) -> str:
    """Return the smallest and the largest of some values: "1.8 to 2.4"; one, if they are equal."""
    ends = (f"{end:{digits}}" for end in (min(values), max(values)))
    return " to ".join(dict.fromkeys(ends))
