"""How texts are divided among threads."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbert.engines.native import schedule
from qdqbert.engines.native.schedule import (
    FEW_ROWS,
    PART_ROWS,
    divide,
    divide_evenly,
    useful_threads,
)


def starts_of(lengths) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@settings(max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 512), min_size=1, max_size=40),
    heads=st.integers(1, 16),
    threads=st.integers(1, 70),
    most=st.sampled_from((PART_ROWS, 512)),
)
def test_each_row_and_item_belongs_to_one_thread(lengths, heads, threads, most) -> None:
    starts = starts_of(lengths)
    shares = divide(starts, heads, threads, part_rows=most)
    assert 1 <= len(shares.rows) == len(shares.items) <= threads
    if shares.by_columns:
        # Each thread has all rows, and takes its heads from the columns.
        assert sum(lengths) <= FEW_ROWS
        assert shares.is_shared
        assert set(shares.rows) == {range(sum(lengths))}
        assert set(shares.items) == {range(0)}
        return
    for parts, count in ((shares.rows, sum(lengths)), (shares.items, len(lengths) * heads)):
        assert [each for part in parts for each in part] == list(range(count))
    if shares.is_shared:
        assert shares.parts == [[0]] * len(shares.rows)
    else:
        # Threads do not wait for each other, so that each has all heads and rows of its texts.
        for rows, items, parts in zip(shares.rows, shares.items, shares.parts, strict=True):
            assert items.start % heads == items.stop % heads == 0
            assert starts[items.start // heads] == rows.start
            assert starts[items.stop // heads] == rows.stop
            assert (parts[0], parts[-1]) == (items.start // heads, items.stop // heads)
            for first, last in itertools.pairwise(parts):
                # Another text would be too much.
                assert last == first + 1 or starts[last] - starts[first] <= most
                assert last == parts[-1] or starts[last + 1] - starts[first] > most


def test_texts_of_one_length_are_not_shared() -> None:
    shares = divide(starts_of([64] * 8), 12, 4)
    assert not shares.is_shared
    assert [len(each) for each in shares.rows] == [128] * 4


def test_one_long_text_is_shared_by_rows_and_heads() -> None:
    shares = divide(starts_of([130]), 12, 2)
    assert shares.is_shared
    assert [len(each) for each in shares.rows] == [65, 65]
    assert [len(each) for each in shares.items] == [6, 6]


def test_a_short_text_is_shared_by_columns() -> None:
    assert divide(starts_of([FEW_ROWS]), 12, 2).by_columns
    assert not divide(starts_of([FEW_ROWS + 1]), 12, 2).by_columns
    assert not divide(starts_of([5]), 12, 1).is_shared


def test_one_thread_computes_few_products(monkeypatch) -> None:
    monkeypatch.setattr(schedule, "PRODUCTS_ALONE", 1000)
    assert [useful_threads(tokens, 100, 3) for tokens in (1, 10, 11, 500)] == [1, 1, 3, 3]
    assert useful_threads(500, 100, 1) == 1


def test_one_thread_computes_more_products_if_a_core_is_busy(monkeypatch) -> None:
    monkeypatch.setattr(schedule, "PRODUCTS_OF_A_SLICE", 2000)
    assert [useful_threads(each, 100, 3, is_busy=True) for each in (20, 21)] == [1, 3]


@given(count=st.integers(0, 3000), parts=st.integers(1, 40), multiple=st.sampled_from((1, 16, 64)))
def test_a_range_is_divided_into_parts_of_about_equal_length(count, parts, multiple) -> None:
    found = divide_evenly(count, parts, multiple)
    assert len(found) == parts
    assert [each for part in found for each in part] == list(range(count))
    assert all(part.start % multiple == 0 for part in found if part)
    assert max(len(part) for part in found) <= count / parts + 2 * multiple
