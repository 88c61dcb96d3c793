from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.runtime.batches import BatchPlan, chunks, stack

LENGTHS = st.lists(st.integers(1, 64), max_size=200)


@given(
    lengths=LENGTHS,
    tokens=st.integers(1, 2048),
    multiple=st.integers(1, 16),
    streams=st.integers(1, 4),
    has_few_shapes=st.booleans(),
)
def test_each_input_is_in_one_batch_that_it_fits(
    lengths, tokens, multiple, streams, has_few_shapes
) -> None:
    plan = BatchPlan(tokens=tokens, multiple=multiple, has_few_shapes=has_few_shapes)
    batches = plan.group(lengths, streams=streams, limit=64)
    assert sorted(index for indices, _ in batches for index in indices) == [*range(len(lengths))]
    for indices, length in batches:
        longest = max(lengths[index] for index in indices)
        assert longest <= length <= 64
        assert length - longest < multiple
        assert len(indices) == 1 or len(indices) * length <= tokens
    assert [length for _, length in batches] == sorted((each[1] for each in batches), reverse=True)


def test_few_inputs_are_divided_among_streams() -> None:
    plan = BatchPlan(tokens=4096, multiple=1)
    assert [indices for indices, _ in plan.group([8] * 6, streams=2, limit=64)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]


@pytest.mark.parametrize(
    ("length", "rows"), [(130, [5] * 4), (230, [4] * 2 + [3] * 4), (1000, [1] * 20)]
)
def test_streams_get_as_many_batches_each(length, rows) -> None:
    plan = BatchPlan(tokens=1024, multiple=1, has_few_shapes=False)
    batches = plan.group([length] * 20, streams=2, limit=1024)
    assert [len(indices) for indices, _ in batches] == rows


@pytest.mark.parametrize(("has_few_shapes", "rows"), [(True, [8, 4, 2, 1]), (False, [8, 7])])
def test_inputs_that_are_left_are_divided_if_few_shapes_are_wanted(has_few_shapes, rows) -> None:
    plan = BatchPlan(tokens=64, multiple=8, has_few_shapes=has_few_shapes)
    batches = plan.group([8] * 15, streams=1, limit=64)
    assert [len(indices) for indices, _ in batches] == rows


def test_lengths_are_rounded_up_to_the_limit() -> None:
    plan = BatchPlan(tokens=64, multiple=8)
    assert [plan.rounded(each, limit=60) for each in (1, 8, 9, 57, 60)] == [8, 8, 16, 60, 60]


def test_inputs_are_padded_with_the_value_of_each_name() -> None:
    features = [
        {"input_ids": np.array(ids, np.int32), "attention_mask": np.ones(len(ids), np.int32)}
        for ids in ([5, 6], [7])
    ]
    stacked = stack(features, {"input_ids": 9, "attention_mask": 0}, 3)
    assert stacked["input_ids"].tolist() == [[5, 6, 9], [7, 9, 9]]
    assert stacked["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    assert {each.dtype for each in stacked.values()} == {np.dtype(np.int64)}


def test_chunks_read_no_further_than_needed() -> None:
    source = iter(range(10))
    found = chunks(source, 4)
    assert next(found) == [0, 1, 2, 3]
    assert next(source) == 4
    assert list(found) == [[5, 6, 7, 8], [9]]
