from __future__ import annotations

import math

import pytest

from qdqbert.evidence.closeness import in_words


@pytest.mark.parametrize(
    ("sqnr_db", "word"),
    [
        (math.inf, "very close"),
        (30, "very close"),
        (29.9, "close"),
        (20, "close"),
        (19.9, "look at your own data"),
        (10, "look at your own data"),
        (9.9, "broken"),
        (-math.inf, "broken"),
        (math.nan, "broken"),
    ],
)
def test_an_sqnr_is_in_words(sqnr_db, word) -> None:
    assert in_words(sqnr_db) == word


@pytest.mark.parametrize(
    ("measured", "word"),
    [
        ({"worst_cosine": 0.999}, "very close"),
        ({"worst_cosine": 0.9989}, "close"),
        ({"worst_cosine": 0.9899}, "look at your own data"),
        ({"worst_cosine": -1.0}, "look at your own data"),
        ({"changed_share": 0.01}, "close"),
        ({"changed_share": 0.06}, "look at your own data"),
        ({"changed_share": 1.0}, "look at your own data"),
        ({"largest_difference": 0.06}, "close"),
        ({"largest_difference": 0.21}, "look at your own data"),
        ({"worst_cosine": 0.995, "changed_share": 0.5}, "look at your own data"),
        ({"worst_cosine": math.nan}, "broken"),
    ],
    ids=str,
)
def test_the_worst_of_what_was_measured_counts(measured, word) -> None:
    assert in_words(40, **measured) == word
