"""Few texts at a time."""

from __future__ import annotations

import pytest

from qdqbert.data.tokenizing.chunks import in_chunks


@pytest.mark.parametrize("count", [0, 1, 128, 129, 300])
def test_chunks_are_small_and_have_all_items_in_order(count) -> None:
    found = list(in_chunks(range(count)))
    assert [each for chunk in found for each in chunk] == list(range(count))
    assert all(0 < len(each) <= 128 for each in found)
