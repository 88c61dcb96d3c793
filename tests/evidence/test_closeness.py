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
