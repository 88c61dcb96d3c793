"""Entities in sequences of tags, read and counted as seqeval does by default (and conlleval).

A tag is a letter and a type, `B-PER`, or `O` outside of all entities. IOB1, IOB2, IOE and IOBES are
all read by the same rules, which mend what no scheme allows: an `I-PER` after `O` begins an entity.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OUTSIDE = "O"


class Entity(NamedTuple):
    """An entity of a sequence: its type, its first and its last tag."""

    type: str
    first: int
    last: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityCounts:
    """How many entities there are, and the scores that follow, in percent; 0 where undefined.

    Attributes:
        predicted: Those that a model found.
        labelled: Those that are there.
        correct: Those that are the same: type, first and last tag.
    """

    predicted: int
    labelled: int
    correct: int

    @property
    def precision(self) -> float:
        """Share of the predicted ones that are correct."""
        return _percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """Share of the labelled ones that were found."""
        return _percent(self.correct, self.labelled)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return _percent(2 * self.correct, self.predicted + self.labelled)


def entities_of(tags: Iterable[str]) -> list[Entity]:
    """Returns the entities of one sequence, in order.

    Example: B-PER I-PER O I-LOC B-LOC → PER 0 to 1, LOC 3 to 3, LOC 4 to 4.
    """
    found = []
    first, before = 0, (_OUTSIDE, "")
    for place, tag in enumerate((*tags, _OUTSIDE)):
        now = _split(tag)
        if _ends(before, now):
            found.append(Entity(before[1], first, place - 1))
        if _begins(before, now):
            first = place
        before = now
    return found


def count_entities(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, EntityCounts]:
    """Returns the counts of each type that is predicted or there, by its name, sorted.

    Args:
        predictions: Predicted tags, one sequence a sentence.
        labels: True tags, as many for each sentence.

    Raises:
        ValueError: There are other numbers of sentences, or of tags in one.
    """
    lengths = [len(sentence) for sentence in predictions], [len(sentence) for sentence in labels]
    if lengths[0] != lengths[1]:
        raise ValueError(
            "`predictions` and `labels` must have as many tags in each sentence, got "
            f"{len(predictions)} sentences with {sum(lengths[0])} tags and {len(labels)} with "
            f"{sum(lengths[1])}. Pass one tag for each word."
        )
    left, right = set(entities_of(_joined(predictions))), set(entities_of(_joined(labels)))
    predicted, labelled, correct = (
        Counter(entity.type for entity in entities) for entities in (left, right, left & right)
    )
    return {
        name: EntityCounts(
            predicted=predicted[name], labelled=labelled[name], correct=correct[name]
        )
        for name in sorted({*predicted, *labelled})
    }


def total(counts: Iterable[EntityCounts]) -> EntityCounts:
    """Returns their sum, whose scores are the micro average."""
    each = list(counts)
    return EntityCounts(
        predicted=sum(count.predicted for count in each),
        labelled=sum(count.labelled for count in each),
        correct=sum(count.correct for count in each),
    )


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


def _joined(sentences: Sequence[Sequence[str]]) -> list[str]:
    """One sequence; an `O` after each sentence ends its last entity."""
    return [tag for sentence in sentences for tag in (*sentence, _OUTSIDE)]


def _split(tag: str) -> tuple[str, str]:
    """Letter and type: B-PER → B and PER, B → B and _."""
    return tag[:1], tag[1:].split("-", maxsplit=1)[-1] or "_"


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether an entity that the tag before belongs to goes no further."""
    return (
        before[0] in ("E", "S")
        or (before[0] in ("B", "I") and now[0] in ("B", "S", _OUTSIDE))
        or (before[0] not in (_OUTSIDE, ".") and before[1] != now[1])
    )


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether the tag is the first of an entity."""
    return (
        now[0] in ("B", "S")
        or (before[0] in ("E", "S", _OUTSIDE) and now[0] in ("E", "I"))
        or (now[0] not in (_OUTSIDE, ".") and before[1] != now[1])
    )
