from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbert.tasks.entities import EntityCounts, count_entities, find_entities, total

TAGS = ["O", *(f"{letter}-{name}" for letter in "BIES" for name in ("PER", "LOC"))]
# Pairs of sentences with equal numbers of tags.
sentence_pairs = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), max_size=12), max_size=4
)


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


@settings(deadline=None)
@given(st.lists(st.sampled_from(TAGS), max_size=20))
def test_entities_are_split_where_two_tags_do_not_belong_together(tags) -> None:
    assert [tuple(entity) for entity in find_entities(tags)] == by_pairs(tags)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_short_sequence_is_split_correctly(length) -> None:
    for tags in itertools.product(TAGS, repeat=length):
        assert [tuple(entity) for entity in find_entities(tags)] == by_pairs(list(tags))


def test_scores_by_hand() -> None:
    labels = [
        ["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"],
        ["B-PER", "I-PER", "O", "B-PER"],
    ]
    predictions = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "O", "O"], ["B-PER", "I-PER", "O", "O"]]
    counts = count_entities(predictions, labels)
    assert counts == {
        "MISC": EntityCounts(predicted=1, labelled=1, correct=0),
        "PER": EntityCounts(predicted=1, labelled=2, correct=1),
    }
    assert (counts["MISC"].precision, counts["MISC"].recall, counts["MISC"].f1) == (0, 0, 0)
    assert (counts["PER"].precision, counts["PER"].recall) == (100, 50)
    assert counts["PER"].f1 == pytest.approx(200 / 3)
    everything = total(counts.values())
    assert everything == EntityCounts(predicted=2, labelled=3, correct=1)
    assert everything.f1 == 40


def test_no_entities_score_0() -> None:
    counts = count_entities([["O"]], [["O"]])
    assert counts == {}
    nothing = total(counts.values())
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)


def test_no_entity_continues_in_the_next_sentence() -> None:
    counts = count_entities([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]])
    assert counts["PER"] == EntityCounts(predicted=2, labelled=2, correct=2)


@settings(deadline=None)
@given(sentence_pairs)
def test_counts_are_sums_over_sentences(pairs) -> None:
    left = [[a for a, _ in sentence] for sentence in pairs]
    right = [[b for _, b in sentence] for sentence in pairs]
    found = [(set(by_pairs(a)), set(by_pairs(b))) for a, b in zip(left, right, strict=True)]
    assert total(count_entities(left, right).values()) == EntityCounts(
        predicted=sum(len(a) for a, _ in found),
        labelled=sum(len(b) for _, b in found),
        correct=sum(len(a & b) for a, b in found),
    )
    assert list(count_entities(left, right)) == sorted({e[0] for f in found for s in f for e in s})
