from __future__ import annotations

import logging
import random
import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.errors import DataFileError
from qdqbert.tasks.squad import normalize, score_v1, score_v2

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
    """The rules once more, word by word: an article stands between what is no letter or digit."""
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
    scores = score_v1(golds, {"1": "bernadette!", "2": "copper statue"})
    # Question 2: one shared word, precision 1/2 and recall 1/2.
    assert scores == {"exact_match": 50.0, "f1": 75.0}


def test_v1_f1_of_two_empty_answers_is_0() -> None:
    assert score_v1({"1": ["The"]}, {"1": "a."}) == {"exact_match": 100.0, "f1": 0.0}


def test_v1_scores_a_missing_prediction_0_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        scores = score_v1({"1": ["cat"], "2": ["dog"]}, {"1": "cat", "3": "not asked"})
    assert scores == {"exact_match": 50.0, "f1": 50.0}
    assert "Questions without a prediction, which score 0: 1 of 2" in caplog.text


def test_v1_refuses_a_question_without_an_answer() -> None:
    with pytest.raises(DataFileError, match=r"Question '2' must have an answer.*v2\.0"):
        score_v1({"1": ["cat"], "2": []}, {"1": "cat", "2": ""})


def test_v2_splits_questions_by_whether_they_have_an_answer() -> None:
    golds = {"1": ["black cat"], "2": [], "3": [], "4": ["dog"]}
    scores = score_v2(golds, {"1": "the cat", "2": "", "3": "cat", "4": ""})
    assert scores == {
        "exact": 25.0,
        "f1": pytest.approx(100 * (2 / 3 + 1) / 4),
        "total": 4,
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(100 / 3),
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_v2_reports_only_the_kinds_of_questions_that_exist() -> None:
    assert list(score_v2({"1": []}, {"1": ""})) == [
        *("exact", "f1", "total", "NoAns_exact", "NoAns_f1", "NoAns_total")
    ]


def test_v2_expects_no_answer_if_right_answers_are_only_articles() -> None:
    """Such a question still counts as one that has an answer."""
    scores = score_v2({"1": ["the", "..."]}, {"1": "a"})
    assert (scores["exact"], scores["f1"], scores["HasAns_total"]) == (100.0, 100.0, 1)


def test_v2_ignores_empty_right_answers_next_to_nonempty_ones() -> None:
    scores = score_v2({"1": ["the", "cat"]}, {"1": ""})
    assert (scores["exact"], scores["f1"]) == (0.0, 0.0)


def test_v2_reads_high_odds_as_no_answer() -> None:
    golds, predictions = {"1": ["cat"], "2": []}, {"1": "cat", "2": "cat"}
    odds = {"1": 1.0, "2": 1.5}
    assert score_v2(golds, predictions)["exact"] == 50.0
    assert score_v2(golds, predictions, odds)["exact"] == 100.0  # above 1, the official default
    assert score_v2(golds, predictions, odds, null_threshold=0.0)["exact"] == 50.0
    assert score_v2(golds, predictions, odds, null_threshold=2.0)["exact"] == 50.0


def test_v2_finds_the_best_threshold() -> None:
    golds = {"1": ["cat"], "2": ["black dog"], "3": [], "4": ["tree"]}
    predictions = {"1": "cat", "2": "dog", "3": "house", "4": "tree"}
    odds = {"1": -3.0, "2": -1.0, "3": 0.5, "4": 2.0, "not asked": -9.0}
    scores = score_v2(golds, predictions, odds)
    # Exact, with "" above the odds of 1, 2, 3 and 4: 2, 2, 1 and 2 of 4; the first best counts.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -3.0)
    # F1, where "dog" gains 2/3: 2, 2 2/3, 1 2/3 and 2 2/3.
    assert scores["best_f1"] == pytest.approx(100 * (8 / 3) / 4)
    assert scores["best_f1_thresh"] == -1.0


def test_v2_processes_ties_one_by_one_as_the_official_evaluator() -> None:
    golds, predictions = {"1": ["cat"], "2": []}, {"1": "cat", "2": "dog"}
    tied = {"1": 2.0, "2": 2.0}
    # No threshold parts them; the evaluator counts what it sees between the two.
    assert score_v2(golds, predictions, tied)["best_exact"] == 100.0
    swapped = {"2": 2.0, "1": 2.0}
    assert score_v2(golds, predictions, swapped)["best_exact"] == 50.0


@pytest.mark.parametrize("what", ["a prediction", "null odds"])
def test_v2_names_a_question_without_prediction_or_odds(what: str) -> None:
    golds: dict[str, list[str]] = {"1": [], "2": []}
    full, short = {"1": 0.0, "2": 0.0}, {"1": 0.0}
    predictions = {"1": ""} if what == "a prediction" else {"1": "", "2": ""}
    with pytest.raises(
        DataFileError, match=f"must have {what}, got none for 1 of 2, among them '2'"
    ):
        score_v2(golds, predictions, full if what == "a prediction" else short)


@pytest.mark.parametrize("score", [score_v1, score_v2])
def test_empty_data_are_refused(score) -> None:
    with pytest.raises(DataFileError, match="at least one question"):
        score({}, {})


@given(prediction=TEXTS, golds=st.lists(TEXTS, min_size=1, max_size=3))
def test_v1_is_equal_to_a_reference(prediction: str, golds: list[str]) -> None:
    scores = score_v1({"1": golds}, {"1": prediction})
    exact = any(words_of(prediction) == words_of(gold) for gold in golds)
    assert scores["exact_match"] == 100.0 * exact
    best = max(f1_of(prediction, gold, both_empty=0) for gold in golds)
    assert scores["f1"] == pytest.approx(float(100 * best))


@given(prediction=TEXTS, golds=st.lists(TEXTS, max_size=3))
def test_v2_is_equal_to_a_reference(prediction: str, golds: list[str]) -> None:
    scores = score_v2({"1": golds}, {"1": prediction})
    right = [gold for gold in golds if words_of(gold)] or [""]
    assert scores["exact"] == 100.0 * any(words_of(prediction) == words_of(gold) for gold in right)
    best = max(f1_of(prediction, gold, both_empty=1) for gold in right)
    assert scores["f1"] == pytest.approx(float(100 * best))
    assert ("HasAns_f1" in scores, "NoAns_f1" in scores) == (bool(golds), not golds)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    ids = [str(i) for i in range(12)]
    golds = {i: rng.choice([[], ["cat"], ["black cat"]]) for i in ids}
    predictions = {i: rng.choice(["", "cat", "dog"]) for i in ids}
    odds = {i: rng.uniform(-3, 3) for i in ids}

    def score_at(threshold: float) -> float:
        kept = {i: predictions[i] if odds[i] <= threshold else "" for i in ids}
        return score_v2(golds, kept)["f1"]

    scores = score_v2(golds, predictions, odds)
    assert scores["best_f1"] == pytest.approx(max(map(score_at, [-9.0, *odds.values()])))
    if scores["best_f1_thresh"]:
        assert scores["best_f1"] == pytest.approx(score_at(scores["best_f1_thresh"]))
