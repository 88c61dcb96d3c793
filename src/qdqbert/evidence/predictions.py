"""Lines for the files of predictions, and of those that differ from the reference's."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdqbert.tasks.task import Answer, Decisions

PREDICTIONS = "predictions.jsonl"
CHANGED = "changed.jsonl"

# Number of changed predictions in a report, and the length in characters of their texts.
_SHOWN = 10
_LONGEST = 300
# Columns of a row that are no text.
_NO_TEXTS = ("change", "changed", "row", "rows", "id", "label", "labels", "reference")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangedExample:
    """An example whose prediction changed.

    Attributes:
        text: Its text or texts, shortened.
        before: Prediction of the float model, shortened. Of one for each word, what differs, with
            one word in a line.
        after: Prediction of the quantized model, in the same form.
        label: The right answer, in the same form; `None` if it is not known.
    """

    text: str
    before: str
    after: str
    label: str | None = None


def prediction_rows(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return the fields of each example and its answer."""
    return [{**each.given, **each.found} for each in answers]


def changed_rows(
    answers: Sequence[Answer],
    references: Sequence[Answer],
    decisions: tuple[Decisions, Decisions] | None,
) -> list[dict[str, Any]]:
    """Return the answers that differ from the reference's, the largest change first.

    Args:
        answers: Answers of the model.
        references: Answers of the reference to the same examples.
        decisions: Decisions of the reference, and of the model. `None` for tasks without decisions:
            then all answers are returned whose numbers differ at all.

    Returns:
        Rows with the fields of the example and its answer. `change` is the largest difference of a
        probability, cosine or score, `changed` the number of decisions that differ, and `reference`
        the answer of the reference.
    """
    pairs = [((), ())] * len(answers) if decisions is None else zip(*decisions, strict=True)
    rows = []
    for answer, reference, pair in zip(answers, references, pairs, strict=True):
        changed = sum(map(operator.ne, *pair))
        change = float(np.abs(answer.numbers - reference.numbers).max(initial=0))
        if changed or (decisions is None and change):
            counts = {} if decisions is None else {"changed": changed}
            rows.append(
                {
                    "change": change,
                    **counts,
                    **answer.given,
                    **answer.found,
                    "reference": dict(reference.found),
                }
            )
    return sorted(rows, key=lambda row: -row["change"])


def changed_examples(rows: Sequence[Mapping[str, Any]]) -> tuple[ChangedExample, ...]:
    """Return the texts and both predictions of the largest changes.

    Of predictions for each word or masked token, only those that differ are shown, with the word.
    """
    return tuple(_changed_example(row) for row in rows[:_SHOWN])


def _changed_example(row: Mapping[str, Any]) -> ChangedExample:
    before = row["reference"]
    after = {name: row.get(name) for name in before}
    texts = [
        _joined(value, " " if name == "words" else " | ")
        for name, value in row.items()
        if name not in _NO_TEXTS and name not in before and value is not None
    ]
    label = row.get("label")
    # A label of each word or token, or several right answers.
    labels = row.get("labels") or ()
    ours, theirs = after.get("prediction"), before.get("prediction")
    if isinstance(ours, list) and isinstance(theirs, list):
        words = row.get("words") or [None] * len(ours)
        places = [
            index for index, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]
        ]
        shown = [_at(places, each, words) for each in (theirs, ours)]
        label = _at(places, labels, words) if labels else None
    else:
        shown = [str(each.get("prediction", dict(each))) for each in (before, after)]
        if labels and all(isinstance(each, str) for each in labels):
            label = _joined(labels, " | ")
    return ChangedExample(
        text=_shortened(" | ".join(texts)),
        before=_shortened(shown[0]),
        after=_shortened(shown[1]),
        label=None if label is None else _shortened(str(label)),
    )


def _joined(value: Any, separator: str) -> str:
    return separator.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _at(places: Sequence[int], values: Sequence[Any], words: Sequence[str | None]) -> str:
    """Return the values at some places, each after the word there, if it is known."""
    pairs = ((words[place], values[place]) for place in places)
    return "\n".join(f"{value}" if word is None else f"{word}: {value}" for word, value in pairs)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
