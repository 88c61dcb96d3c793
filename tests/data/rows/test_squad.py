from __future__ import annotations

import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.squad import normalize, scores_v1, scores_v2

PIECES = [
    "the",
    "The",
    "a",
    "an",
    "cat",
    "Cat,",
    "cat.",
    "dog",
    "sat",
    "-",
    "U.S.",
    "é",
    " ",
    "\u00a0",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=5).map(" ".join)


def words_of(text: str) -> list[str]:
    """Apply the rules word by word; articles are separated by anything but letters and digits."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    marked = "".join(
        letter if letter.isalnum() or letter == "_" else f" {letter} " for letter in kept
    )
    return " ".join(w for w in marked.split() if w not in ("a", "an", "the")).split()


def f1_of(prediction: str, gold: str, *, both_empty: int) -> Fraction:
    left, right = words_of(prediction), words_of(gold)
    if not left or not right:
        return Fraction(both_empty if left == right else 0)
    rest, same = list(right), 0
    for word in left:
        if word in rest:
            rest.remove(word)
            same += 1
    return Fraction(2 * same, len(left) + len(right))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat sat.", "cat sat"),
        ("a.m.", "am"),
        ("the-end", "theend"),
        ("An apple, the pear", "apple pear"),
        ("Theory of a theme", "theory of theme"),
        ("“the” end…", "“ ” end…"),
        ("é\u00a0the", "é"),
        ("THE", ""),
    ],
)
def test_texts_are_normalized_in_the_official_order(text: str, expected: str) -> None:
    assert normalize(text) == expected


def test_v1_compares_with_the_right_answer_that_fits_best() -> None:
    golds = {"1": ["Saint Bernadette Soubirous", "Bernadette"], "2": ["in the copper"]}
    scores = scores_v1(golds, {"1": "bernadette!", "2": "copper statue"})
    # Question 2: one shared word, precision 1/2 and recall 1/2.
    assert scores == {"exact_match": [1, 0], "f1": [1.0, 0.5]}


def test_v1_f1_of_two_empty_answers_is_0() -> None:
    assert scores_v1({"1": ["The"]}, {"1": "a."}) == {"exact_match": [1], "f1": [0.0]}


def test_v1_refuses_a_question_without_an_answer() -> None:
    with pytest.raises(DataFileError, match=r"Question '2' must have an answer.*v2\.0"):
        scores_v1({"1": ["cat"], "2": []}, {"1": "cat", "2": ""})


def test_v2_splits_questions_by_whether_they_have_an_answer() -> None:
    golds = {"1": ["black cat"], "2": [], "3": [], "4": ["dog"]}
    scores = scores_v2(golds, {"1": "the cat", "2": "", "3": "cat", "4": ""})
    assert scores == {
        "f1": [pytest.approx(2 / 3), 1, 0, 0],
        "exact": [0, 1, 0, 0],
        "HasAns_f1": [pytest.approx(2 / 3), 0],
        "HasAns_exact": [0, 0],
        "NoAns_f1": [1, 0],
        "NoAns_exact": [1, 0],
    }


def test_v2_reports_only_the_kinds_of_questions_that_exist() -> None:
    assert list(scores_v2({"1": []}, {"1": ""})) == ["f1", "exact", "NoAns_f1", "NoAns_exact"]


def test_v2_expects_no_answer_if_right_answers_are_only_articles() -> None:
    # Such a question still counts as one with an answer.
    scores = scores_v2({"1": ["the", "..."]}, {"1": "a"})
    assert (scores["exact"], scores["f1"], scores["HasAns_f1"]) == ([1], [1], [1])


def test_v2_ignores_empty_right_answers_next_to_nonempty_ones() -> None:
    scores = scores_v2({"1": ["the", "cat"]}, {"1": ""})
    assert (scores["exact"], scores["f1"]) == ([0], [0])


@pytest.mark.parametrize("score", [scores_v1, scores_v2])
def test_empty_data_are_refused(score) -> None:
    with pytest.raises(DataFileError, match="at least one question"):
        score({}, {})


@given(prediction=TEXTS, golds=st.lists(TEXTS, min_size=1, max_size=3))
def test_v1_is_equal_to_a_reference(prediction: str, golds: list[str]) -> None:
    scores = scores_v1({"1": golds}, {"1": prediction})
    exact = any(words_of(prediction) == words_of(gold) for gold in golds)
    assert scores["exact_match"] == [exact]
    best = max(f1_of(prediction, gold, both_empty=0) for gold in golds)
    assert scores["f1"] == [pytest.approx(float(best))]


@given(prediction=TEXTS, golds=st.lists(TEXTS, max_size=3))
def test_v2_is_equal_to_a_reference(prediction: str, golds: list[str]) -> None:
    scores = scores_v2({"1": golds}, {"1": prediction})
    right = [gold for gold in golds if words_of(gold)] or [""]
    assert scores["exact"] == [any(words_of(prediction) == words_of(gold) for gold in right)]
    best = max(f1_of(prediction, gold, both_empty=1) for gold in right)
    assert scores["f1"] == [pytest.approx(float(best))]
    assert ("HasAns_f1" in scores, "NoAns_f1" in scores) == (bool(golds), not golds)
