"""Find and count entities in sequences of tags, as seqeval's default mode and conlleval do.

A tag is a letter and a type, such as `B-PER`, or `O` outside of entities. IOB1, IOB2, IOE and IOBES
are all read by the same rules, which also accept what no scheme allows: an `I-PER` after `O` begins
an entity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from qdqbert.data.rows.conll import OUTSIDE


class Entity(NamedTuple):
    """An entity: its type and the positions of its first and last tag."""

    type: str
    first: int
    last: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityCounts:
    """Numbers of entities, and the scores computed from them, in percent; 0 where undefined.

    Attributes:
        predicted: Number of entities that a model found.
        labelled: Number of entities in the labels.
        correct: Number of entities that are in both, with equal type, first and last tag.
    """

    predicted: float
    labelled: float
    correct: float

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are correct."""
        return _percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        """Share of the labelled entities that were found."""
        return _percent(self.correct, self.labelled)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return _percent(2 * self.correct, self.predicted + self.labelled)


def find_entities(tags: Iterable[str]) -> list[Entity]:
    """Return the entities of one sequence, in order.

    Example: B-PER I-PER O I-LOC B-LOC → PER 0 to 1, LOC 3 to 3, LOC 4 to 4.
    """
    found = []
    first, before = 0, (OUTSIDE, "")
    for place, tag in enumerate((*tags, OUTSIDE)):
        now = _split(tag)
        if _ends(before, now):
            found.append(Entity(before[1], first, place - 1))
        if _begins(before, now):
            first = place
        before = now
    return found


def counts_of(predicted: Set[Any], labelled: Set[Any]) -> EntityCounts:
    """Return the counts of the entities of one sentence."""
    return EntityCounts(
        predicted=len(predicted), labelled=len(labelled), correct=len(predicted & labelled)
    )


def _percent(part: float, total: float) -> float:
    return 100.0 * part / total if total else 0.0


def _split(tag: str) -> tuple[str, str]:
    """Split a tag into letter and type: B-PER → B and PER, B → B and _."""
    return tag[:1], tag[1:].split("-", maxsplit=1)[-1] or "_"


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Return whether the entity of the tag before, if any, ends there."""
    return (
        before[0] in ("E", "S")
        or (before[0] in ("B", "I") and now[0] in ("B", "S", OUTSIDE))
        or (before[0] not in (OUTSIDE, ".") and before[1] != now[1])
    )


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Return whether the tag is the first of an entity."""
    return (
        now[0] in ("B", "S")
        or (before[0] in ("E", "S", OUTSIDE) and now[0] in ("E", "I"))
        or (now[0] not in (OUTSIDE, ".") and before[1] != now[1])
    )
