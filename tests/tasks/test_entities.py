from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.tasks.entities import EntityCounts, counts_of, find_entities
from qdqbert.tasks.entity_scores import entity_scores

TAGS = ["O", *(f"{letter}-{name}" for letter in "BIES" for name in ("PER", "LOC"))]


def of(text: str) -> list[tuple[str, int, int]]:
    return [tuple(entity) for entity in find_entities(text.split())]


def by_pairs(tags: list[str]) -> list[tuple[str, int, int]]:
    """Split a sequence between two tags that cannot belong to one entity."""

    def belong(left: str, right: str) -> bool:
        inside = right[0] in "IE" and left[0] in "BI"
        return inside and left[2:] == right[2:]

    groups: list[list[int]] = []
    for place, tag in enumerate(tags):
        if groups and belong(tags[place - 1], tag):
            groups[-1].append(place)
        else:
            groups.append([place])
    return [(tags[g[0]][2:], g[0], g[-1]) for g in groups if tags[g[0]] != "O"]


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("", []),
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("B-PER B-PER I-PER", [("PER", 0, 0), ("PER", 1, 2)]),
        ("I-PER I-PER B-PER O I-LOC", [("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4)]),
        ("I-PER E-PER E-PER O E-LOC", [("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4)]),
        ("B-PER I-PER E-PER S-PER O", [("PER", 0, 2), ("PER", 3, 3)]),
        ("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),
        ("S-PER I-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-PER S-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-a-b I-a-b I-a", [("a-b", 0, 1), ("a", 2, 2)]),
        ("B I O S", [("_", 0, 1), ("_", 3, 3)]),
    ],
    ids=[
        "empty",
        "none",
        "IOB2",
        "IOB2-side-by-side",
        "IOB1",
        "IOE",
        "IOBES",
        "other-type",
        "inside-after-single",
        "single-after-begin",
        "hyphen-in-a-type",
        "no-type",
    ],
)
def test_entities_by_hand(tags, entities) -> None:
    assert of(tags) == entities


@given(st.lists(st.sampled_from(TAGS), max_size=20))
def test_entities_are_split_where_two_tags_do_not_belong_together(tags) -> None:
    assert [tuple(entity) for entity in find_entities(tags)] == by_pairs(tags)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_short_sequence_is_split_correctly(length) -> None:
    for tags in itertools.product(TAGS, repeat=length):
        assert [tuple(entity) for entity in find_entities(tags)] == by_pairs(list(tags))


def test_scores_by_hand() -> None:
    labels = "B-PER I-PER O B-PER O B-MISC I-MISC I-MISC"
    predictions = "B-PER I-PER O O O B-MISC I-MISC O"
    found = counts_of(set(of(predictions)), set(of(labels)))
    assert found == EntityCounts(predicted=2, labelled=3, correct=1)
    assert (found.precision, found.recall, found.f1) == (50, pytest.approx(100 / 3), 40)
    nothing = EntityCounts(predicted=1, labelled=1, correct=0)
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)


def test_no_entities_score_0() -> None:
    nothing = counts_of(set(), set())
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)


def test_scores_count_the_entities_of_all_sentences() -> None:
    found = entity_scores(
        [
            EntityCounts(predicted=1, labelled=2, correct=1),
            EntityCounts(predicted=1, labelled=1, correct=0),
        ]
    )
    assert {each.name: each.metric().value for each in found} == {
        "f1": 40,
        "precision": 50,
        "recall": pytest.approx(100 / 3),
    }
