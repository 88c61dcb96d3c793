"""Parts of reports that compare models with a reference: metrics, fidelity and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from qdqbert.evidence.closeness import in_words
from qdqbert.evidence.fidelity import MANY_CHANGED_PERCENT, EntityAgreement, Fidelity
from qdqbert.evidence.intervals import Interval, proportion_interval
from qdqbert.evidence.limits import LimitCheck, MetricDifference
from qdqbert.evidence.predictions import ChangedExample
from qdqbert.evidence.reporting.document import (
    Cell,
    Level,
    Section,
    Table,
    bar,
    counted,
    decibels,
    digits_of,
    interval_text,
    span,
)
from qdqbert.evidence.word_agreement import WordAgreement
from qdqbert.tasks.registry import TASKS
from qdqbert.tasks.task import Metric

# Name of the measure of each limit, its unit, and the format of measurements.
_LIMITED: Mapping[str, tuple[str, str, str]] = {
    "max_drop": ("loss of {}", "", "+.2f"),
    "max_flips": ("changed predictions", " %", ".2f"),
    "min_sqnr": ("SQNR", " dB", ".1f"),
    "min_cosine": ("lowest cosine", "", ".4f"),
}
_LEVELS: Mapping[str, Level] = {"met": "good", "missed": "bad", "not shown": "bad"}
_TERMS = (
    (
        "float, INT8",
        "The model before and after quantization. INT8 stores weights and computes linear layers "
        "with integers of 8 bits, which takes a quarter of the memory. W4A8 has weights of 4 bits "
        "and activations of 8, all stored in 8.",
    ),
    (
        "changed predictions",
        "Share of the decisions in which both models differ, right or wrong.",
    ),
    (
        "SQNR",
        "Signal-to-quantization-noise ratio of the outputs, the float model's being the signal. "
        "More is better: at 20 dB the noise is a tenth of the signal, at 40 dB a hundredth. From "
        "30 dB on it is very close, from 20 on close, from 10 on your own data decide, and below "
        "it is broken.",
    ),
    (
        "changed entities",
        "Share of the entities that one of both models finds and the other does not; and share of "
        "the texts of which both models list other entities.",
    ),
    ("cosine", "Similarity of a text's two embeddings. 1 is equal."),
    (
        "interval",
        "What other examples of the same kind would give, at a confidence of 95 %. It is shown as "
        "a line around a point, or in parentheses.",
    ),
)
TERMS = Section("What do the words mean?", table=Table("", _TERMS), is_folded=True)
"""Explains the words of a report."""


class Compared(Protocol):
    """Measurements of a model next to its reference."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Its metrics, if the texts have labels."""

    @property
    def differences(self) -> tuple[MetricDifference, ...]:
        """Its metrics minus the reference's."""

    @property
    def fidelity(self) -> Fidelity | None:
        """How close it is to the reference."""

    @property
    def limits(self) -> tuple[LimitCheck, ...]:
        """Check of each limit of the call."""


def quality(
    models: Mapping[str, Compared], reference: str, metrics: Sequence[Metric], task: str
) -> Table:
    """Compare models with their reference.

    `reference` is its name, empty if there is none, and `metrics` are its metrics.
    """
    found = {each.name: {reference: Cell(text=metric_text(each))} for each in metrics}
    for name, model in models.items():
        for row, cell in _quality(model, reference, task).items():
            found.setdefault(row, {})[name] = cell
    columns = ["", *([reference] if reference else []), *models]
    names = " | ".join(f"{each} {{}}" if each else "" for each in columns)
    rows = [(row, *map(cells.get, columns[1:])) for row, cells in found.items()]
    return Table(names, rows, compares_rows=True)


def _quality(model: Compared, reference: str, task: str) -> dict[str, Cell]:
    """Return the measures of a model's quality, by name."""
    cells = {each.name: Cell(text=metric_text(each)) for each in model.metrics}
    for each in model.differences:
        cells[f"{each.name}, difference (95 %)"] = Cell(
            text=difference_text(each), value=each.value, interval=each.interval
        )
    fidelity = model.fidelity
    if fidelity is None:
        return cells
    if fidelity.flips_percent is not None and fidelity.flips_interval is not None:
        name = f"changed predictions, {_decided(fidelity, task)}"
        cells[name] = _share(fidelity.flips_percent, fidelity.flips_interval)
    if fidelity.entities is not None:
        cells |= _entities(fidelity.entities, fidelity.texts)
    if fidelity.cosine_mean is not None:
        cosines = f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}"
        cells[f"cosine to {reference}, mean / worst"] = Cell(text=cosines)
    if fidelity.words is not None:
        cells |= _words(fidelity.words, reference)
    if fidelity.max_sim_recall is not None:
        name = f"10 nearest texts by MaxSim: same as {reference}"
        cells[name] = bar(fidelity.max_sim_recall, "{:.1f} %")
    interval = interval_text(fidelity.sqnr_interval, ".1f")
    level = decibels(fidelity.sqnr_db)
    cells[f"SQNR to {reference}"] = Cell(
        text=level if level == "equal" else f"{level} {interval}, {in_words(fidelity.sqnr_db)}",
        value=fidelity.sqnr_db,
        interval=fidelity.sqnr_interval,
    )
    return cells


def _entities(found: EntityAgreement, texts: int) -> dict[str, Cell]:
    """Return how well entities agree, by name."""
    entities, lists = counted(found.entities, "entity"), counted(texts, "text")
    cells = {
        f"changed entities, {entities}": _share(found.changed_percent, found.changed_interval),
        f"texts with changed entities, {lists}": _share(found.texts_percent, found.texts_interval),
    }
    if found.largest_difference is not None:
        name = "probability of an entity, largest difference"
        cells[name] = bar(found.largest_difference, "{:.3f}")
    return cells


def _share(percent: float, interval: Interval) -> Cell:
    text = f"{percent:.2f} % {interval_text(interval, '.2f')}"
    return Cell(text=text, value=percent, interval=interval)


def _words(words: WordAgreement, reference: str) -> dict[str, Cell]:
    """Return how well the words of sparse embeddings agree, by name."""
    cells = {
        f"{words.top} largest weights: same words as {reference}": bar(
            words.overlap_percent, "{:.1f} %"
        ),
        f"words with a weight, mean (of {reference})": Cell(
            text=f"{words.active:.1f} ({words.float_active:.1f})"
        ),
    }
    if words.recall_percent is not None:
        cells[f"10 nearest texts: same as {reference}"] = bar(words.recall_percent, "{:.1f} %")
    return cells


def difference_text(difference: MetricDifference) -> str:
    """Return a difference with its interval: "+0.46 (-0.23 to +1.15)"."""
    digits = difference_digits(difference)
    return f"{difference.value:{digits}} {interval_text(difference.interval, digits)}"


def difference_digits(difference: MetricDifference) -> str:
    """Return the format of a difference and its interval; see `digits_of`."""
    values = (difference.value, difference.interval.low, difference.interval.high)
    return f"+{digits_of(values, is_error=difference.is_error)}"


def metric_text(metric: Metric) -> str:
    """Return the value of a metric."""
    return f"{metric.value:{digits_of([metric.value], is_error=metric.is_error)}}"


def _decided(fidelity: Fidelity, task: str) -> str:
    return counted(fidelity.decisions or 0, TASKS[task].decided)


def closeness(
    models: Sequence[Compared], task: str, reference: str
) -> tuple[tuple[str, str, str], str] | None:
    """Return a tile and a phrase on how close models are, by the task's own measure."""
    found = [each.fidelity for each in models if each.fidelity is not None]
    flips = [(each.flips_percent, each) for each in found if each.flips_percent is not None]
    if flips:
        share = f"{span([percent for percent, _ in flips], '.2f')} %"
        _, worst = max(flips, key=lambda pair: pair[0])
        assert worst.flips_interval is not None
        low, high = worst.flips_interval.low, worst.flips_interval.high
        note = f"of {_decided(worst, task)}; other texts may give {low:.2f} to {high:.2f} %"
        phrase = f"{share} of the predictions changed"
        if worst.entities is not None:
            lists = f"the entities of {worst.entities.texts_percent:.2f} % of the texts"
            note, phrase = f"{note}; {lists} changed", f"{phrase}, and {lists}"
        return ("changed predictions", share, note), phrase
    cosines = [each.cosine_mean for each in found if each.cosine_mean is not None]
    if cosines:
        name, mean = f"cosine to {reference}", span(cosines, ".4f")
        lowest = min(each.cosine_min for each in found if each.cosine_min is not None)
        note = f"mean over the texts; the worst text has {lowest:.4f}"
        return (name, mean, note), f"mean {name} {mean}"
    if found:
        name, level = f"SQNR to {reference}", f"{span([each.sqnr_db for each in found], '.1f')} dB"
        return (name, level, "more is better"), f"{name} {level}"
    return None


def can_show_closeness(model: Compared) -> bool:
    """Return whether there are enough predictions to show that few of them change, if few do."""
    count = None if model.fidelity is None else model.fidelity.decisions
    return count is None or 100 * proportion_interval(0, count).high <= MANY_CHANGED_PERCENT


def limit_sections(models: Mapping[str, Compared]) -> list[Section]:
    """Show which limits are met; nothing without limits."""
    rows = [
        (name, limit_text(check, each.metrics), *_limit_result(each, check))
        for name, each in models.items()
        for check in each.limits
    ]
    text = (
        "A limit is met if it holds for the whole interval, and not shown if there are too few "
        "examples to tell. So many would show it, if others of their kind give the same value."
    )
    table = Table("model | limit | measured | verdict | would show it", rows)
    return [Section("Limits", text, table.without_empty_columns())] if rows else []


def limit_text(check: LimitCheck, metrics: Sequence[Metric]) -> str:
    """Return a limit in words: "changed predictions of at most 2 %"."""
    name, unit, _ = _LIMITED[check.option]
    if check.option == "max_drop":
        name = name.format(metrics[0].name)
    bound = "at most" if check.option.startswith("max") else "at least"
    return f"{name} of {bound} {check.limit:g}{unit}"


def _limit_result(model: Compared, check: LimitCheck) -> tuple[str, Cell, str | None]:
    """Return the measured value, the verdict, and how many examples would show the limit."""
    needed = examples_needed(check) if check.verdict == "not shown" else None
    return (
        _limit_value(model, check),
        Cell(text=check.verdict, level=_LEVELS[check.verdict]),
        needed,
    )


def _limit_value(model: Compared, check: LimitCheck) -> str:
    """Return the measured value. A loss is shown as a signed difference."""
    if check.option == "max_drop":
        return difference_text(model.differences[0])
    _, unit, digits = _LIMITED[check.option]
    return f"{check.value:{digits}}{unit} {interval_text(check.interval, digits)}"


def examples_needed(check: LimitCheck) -> str:
    """Return how many examples would show a limit that is not shown, in words."""
    count = check.examples_needed
    return "no number of examples" if count is None else f"about {counted(count, 'example')}"


def unmet_text(models: Sequence[Compared]) -> str:
    """Return a sentence about the first limit that is missed, or else not shown."""
    unmet = [(each, check) for each in models for check in each.limits if check.verdict != "met"]
    return _unmet_text(*min(unmet, key=lambda pair: pair[1].verdict != "missed"))


def unmet_limits(model: Compared) -> str:
    """Return sentences about the limits that a model does not meet; empty if it meets all."""
    return "; ".join(_unmet_text(model, check) for check in model.limits if check.verdict != "met")


def _unmet_text(model: Compared, check: LimitCheck) -> str:
    limit, value = limit_text(check, model.metrics), _limit_value(model, check)
    if check.verdict == "missed":
        return f"{limit} is missed: {value}"
    return f"too few examples to show {limit}: {value}, {examples_needed(check)} would"


def changed_sections(
    examples: Sequence[ChangedExample], models: str, names: tuple[str, str]
) -> list[Section]:
    """Show examples whose prediction changed; nothing without any.

    `models` names the reference and the model in a sentence, and `names` the columns of their
    predictions.
    """
    has_labels = any(each.label is not None for each in examples)
    columns = ["example", *(["label"] if has_labels else []), *names]
    rows = [(x.text, *([x.label] if has_labels else []), x.before, x.after) for x in examples]
    text = f"Examples that {models} predict differently, at most ten, the largest change first."
    table = Table(" | ".join(columns), rows)
    return [Section("Which predictions changed?", text, table, is_detail=True)] if rows else []


def environment(
    cpu: str, features: Sequence[str], cores: int, versions: Mapping[str, str]
) -> Section:
    """Show where something was measured."""
    rows = [("CPU", cpu), ("its features for INT8", ", ".join(features)), ("cores", cores)]
    table = Table("", [*rows, *versions.items()])
    return Section("Where was it measured?", table=table, is_folded=True)
