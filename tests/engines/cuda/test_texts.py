"""Texts without padding, in parts, and as the numbers of a program."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.engines.cuda.texts import Texts, parts_of, size_of


def texts_of(lengths: list[int]) -> Texts:
    """Return texts whose last token is not attended to, and whose numbers are all different."""
    starts = np.append(0, np.cumsum(lengths)).astype(np.int32)
    tokens = np.arange(1, 4 * starts[-1] + 1, dtype=np.int32).reshape(4, -1)
    return Texts(tokens=tokens, starts=starts, attended=np.array(lengths, np.int32) - 1)


@pytest.mark.parametrize("most", [1024, 8192])
@pytest.mark.parametrize("lengths", [[1] * 2000, [8192] * 3, [9000, 1, 8191, 1], [100] * 200, [7]])
def test_parts_have_each_token_once_and_fit(lengths, most) -> None:
    batch, first, chunks = texts_of(lengths), 0, []
    while first < len(lengths):
        chunks.append(batch.part(first, most))
        first += len(chunks[-1].attended)
    found = np.concatenate([each.tokens for each in chunks], axis=1)
    np.testing.assert_array_equal(found, batch.tokens)
    assert [length for each in chunks for length in each.attended + 1] == lengths
    for chunk in chunks:
        counts = np.diff(chunk.starts)
        assert chunk.starts[-1] <= most or len(counts) == 1
        # The blocks of a text begin at its first query, and end with its last one.
        wanted = [
            (first, first + count, first + count - 1, place)
            for first, count in zip(chunk.starts[:-1], counts, strict=True)
            for place in range(0, count, 64)
        ]
        np.testing.assert_array_equal(chunk.blocks, wanted)


@pytest.mark.parametrize(
    ("lengths", "capacity"),
    [([16], 16), ([17], 64), ([1] * 6, 64), ([70, 8100], 8192), ([8193], 8208)],
)
def test_numbers_are_those_of_the_texts_and_zeros(lengths, capacity) -> None:
    batch = texts_of(lengths)
    assert batch.capacity == capacity
    numbers = np.zeros(size_of(capacity), np.int32)
    batch.write(numbers)
    count, *parts = parts_of(numbers, capacity)
    assert count.tolist() == [sum(lengths), 0, 0, 0]
    for part, wanted in zip(parts, (batch.tokens, batch.blocks, batch.starts), strict=True):
        inside = tuple(slice(length) for length in wanted.shape)
        np.testing.assert_array_equal(part[inside], wanted)
        assert np.count_nonzero(part) == np.count_nonzero(wanted)
    # They do not overlap.
    assert sum(part.size for part in parts) + count.size == numbers.size
