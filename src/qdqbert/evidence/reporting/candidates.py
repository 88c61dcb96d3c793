"""Parts of the report of `quantize`: what the target `auto` chose from, and why."""

from __future__ import annotations

from collections.abc import Sequence

from qdqbert.evidence.reporting.document import Cell, Level, Section, Table, bar
from qdqbert.evidence.reporting.graphs import Winner, graph_name
from qdqbert.evidence.reports import CandidateReport

_VERDICTS: dict[str, Level] = {"chosen": "good", "rejected": "bad", "slower": "plain"}


def chosen_winner(found: Sequence[CandidateReport]) -> Winner | None:
    """Return the candidate that was chosen; `None` if none was.

    It is compared with the fastest float model that was not rejected.
    """
    chosen = next((each for each in found if each.verdict == "chosen"), None)
    if chosen is None:
        return None
    best = _best_float(found)
    return Winner(
        name=graph_name(chosen),
        engine=chosen.engine,
        ratio=None if best is None else times_as_fast(chosen, best),
        reference="" if best is None else best.engine,
        is_fastest=not _faster(found, chosen),
    )


def times_as_fast(candidate: CandidateReport, other: CandidateReport) -> float:
    """Return how many times as fast a candidate is as another one, from the numbers of both."""
    return other.relative_time / candidate.relative_time


def reason_of(found: Sequence[CandidateReport]) -> str:
    """Say in words why a candidate was chosen, and why faster ones were not.

    `found` are all candidates, the fastest one first.
    """
    chosen = next((each for each in found if each.verdict == "chosen"), None)
    if chosen is None:
        return "No candidate is close enough to float."
    faster = _faster(found, chosen)
    quantized = [each for each in found if not _is_float(each)]
    if _is_float(chosen) and quantized and not faster:
        codes = " or ".join(dict.fromkeys(each.codes for each in quantized))
        return f"{candidate_name(chosen)} is faster here than any {codes} graph."
    closeness = " that is close enough to float" if faster else ""
    name = candidate_name(chosen)
    sentences = [f"{name} is the fastest of {len(found)} candidates{closeness}."]
    best = _best_float(found)
    if best is not None and not _is_float(chosen):
        ratio = times_as_fast(chosen, best)
        sentences.append(f"It is {ratio:.2f} times as fast as {candidate_name(best)}.")
    sentences += [
        f"{candidate_name(each)} is {times_as_fast(each, chosen):.2f} times as fast, and was "
        f"rejected: {each.reason}."
        for each in faster
    ]
    return " ".join(sentences)


def candidate_sections(found: Sequence[CandidateReport], reason: str | None) -> list[Section]:
    """Show what the target `auto` chose from."""
    rows = [
        (
            candidate_name(each),
            bar(each.single_ms, "{:.2f} ms"),
            bar(each.texts_per_second, "{:,.0f}/s"),
            bar(each.relative_time, "{:.2f}"),
            Cell(text=each.verdict, level=_VERDICTS[each.verdict]),
            each.reason or None,
        )
        for each in found
    ]
    columns = "candidate | 1 text {} | many texts {} | relative time {} | verdict | reason"
    text = (
        f"{reason or ''} Relative time is the geometric mean of the times for one text and for "
        "many, divided by the time of the fastest candidate."
    )
    table = Table(columns, rows).without_empty_columns()
    return [Section("What was it chosen from?", text, table)] if rows else []


def candidate_name(each: CandidateReport) -> str:
    """Return the name of a candidate in tables and sentences."""
    if _is_float(each):
        return f"{each.precision} on {each.engine}"
    details = each.recipe if each.precision == "float32" else f"{each.recipe}, {each.precision}"
    name = f"{each.codes} ({details}) on {each.engine}"
    return name if each.target == each.engine else f"{name} ({each.target})"


def _faster(found: Sequence[CandidateReport], chosen: CandidateReport) -> list[CandidateReport]:
    """Return the rejected candidates that are faster than the chosen one."""
    return [
        each
        for each in found
        if each.verdict == "rejected" and each.relative_time < chosen.relative_time
    ]


def _best_float(found: Sequence[CandidateReport]) -> CandidateReport | None:
    """Return the fastest float model that was not rejected, if there is one."""
    floats = [each for each in found if _is_float(each) and each.verdict != "rejected"]
    return min(floats, key=lambda each: each.relative_time, default=None)


def _is_float(candidate: CandidateReport) -> bool:
    return candidate.recipe == "float"
