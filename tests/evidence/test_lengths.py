"""The distribution of the lengths of texts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.evidence.lengths import text_lengths


@given(st.lists(st.integers(1, 512), min_size=1, max_size=50))
def test_bins_of_equal_width_hold_every_text_once(lengths) -> None:
    found = text_lengths(lengths, truncated=0)
    assert len(set(np.diff(found.edges))) == 1
    assert len(found.counts) <= 20
    assert found.edges[0] == found.shortest == min(lengths)
    assert found.edges[-1] > found.longest == max(lengths)
    bins = [*found.edges[:-1], np.inf]
    np.testing.assert_array_equal(found.counts, np.histogram(lengths, bins)[0])
    assert found.texts == sum(found.counts) == len(lengths)
    assert found.median == np.median(lengths)
