from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qdqbert.calibration.statistics import (
    HistogramObserver,
    Statistics,
    choose_ranges,
    merge_statistics,
)
from qdqbert.common.errors import CalibrationError
from qdqbert.quantization.numerics import histogram
from qdqbert.quantization.numerics.histogram import Histogram, summarize
from qdqbert.quantization.numerics.ranges import Entropy, Max, Mse, Percentile
from qdqbert.quantization.spec import Range, Site

# Padded on the right, on the left, and not at all.
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
TEXT = [[0, 1, 2], [1, 2, 3, 4], [0, 1, 2, 3, 4]]
BATCH, SEQ = MASK.shape
HEADS, HEAD_DIM = 2, 4
GARBAGE = 1e6

SHAPES = {
    (1,): (BATCH, SEQ, HEADS * HEAD_DIM),
    (2,): (BATCH, HEADS, SEQ, HEAD_DIM),
    (3,): (BATCH, HEADS, HEAD_DIM, SEQ),
    (2, 3): (BATCH, HEADS, SEQ, SEQ),
}
EACH_KIND = pytest.mark.parametrize(
    "axes", SHAPES, ids=["hidden", "queries", "transposed-keys", "probabilities"]
)


def site(name: str, axes: tuple[int, ...] = (1,)) -> Site:
    return Site(name=name, kind="activation", sequence_axes=axes)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def collect(*batches: tuple[Site, Tensor], mask: Tensor = MASK) -> Statistics:
    collector = HistogramObserver({where.name for where, _ in batches})
    for where, x in batches:
        collector.start_batch(mask)
        collector.observe(where, x)
    return collector.statistics


def assert_same(a: Histogram, b: Histogram) -> None:
    assert (a.exponent, a.low, a.high) == (b.exponent, b.low, b.high)
    assert torch.equal(a.positive, b.positive)
    assert torch.equal(a.negative, b.negative)


@EACH_KIND
def test_padding_does_not_count(axes) -> None:
    x = torch.full(SHAPES[axes], GARBAGE)
    text = []
    for i, positions in enumerate(TEXT):
        # By hand: write and keep only what stands at text on every axis that runs over tokens.
        place = torch.zeros(SHAPES[axes][1:], dtype=torch.bool)
        for index in torch.cartesian_prod(*(torch.arange(n) for n in place.shape)):
            place[tuple(index)] = all(int(index[axis - 1]) in positions for axis in axes)
        text.append(randn(int(place.sum()), seed=i))
        x[i][place] = text[-1]
    seen = collect((site("a", axes), x))["a"]
    assert_same(seen, summarize(torch.cat(text)))
    assert seen.amax < 10


@EACH_KIND
def test_batch_without_padding_counts_whole(axes) -> None:
    x = randn(*SHAPES[axes])
    assert_same(collect((site("a", axes), x), mask=torch.ones_like(MASK))["a"], summarize(x))


def test_each_batch_has_its_own_padding() -> None:
    collector = HistogramObserver({"a"})
    x = randn(BATCH, SEQ, 3)
    for mask in (torch.ones_like(MASK), MASK, torch.ones_like(MASK)):
        collector.start_batch(mask)
        collector.observe(site("a"), x)
    assert collector.statistics["a"].count == 3 * (15 + 12 + 15)


def test_a_batch_of_only_padding_changes_nothing_that_comes_after() -> None:
    collector = HistogramObserver({"a"})
    x = randn(BATCH, SEQ, 3)
    for mask in (torch.zeros_like(MASK), torch.ones_like(MASK)):
        collector.start_batch(mask)
        collector.observe(site("a"), x)
    assert_same(collector.statistics["a"], summarize(x))


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_value_that_is_not_finite_names_the_site(bad) -> None:
    x = randn(BATCH, SEQ, 3)
    x[0, 1, 2] = bad
    with pytest.raises(CalibrationError, match=r"Site `layer\.3\.query` took a NaN or infinite"):
        collect((site("layer.3.query"), x))


def test_value_that_is_not_finite_is_no_matter_at_padding() -> None:
    x = randn(BATCH, SEQ, 3)
    x[0, 4, 2] = math.nan
    assert collect((site("a"), x))["a"].count == 36


# Sites that read one tensor


@pytest.fixture
def summarized(monkeypatch) -> list[Tensor]:
    """What was given to `summarize`."""
    given: list[Tensor] = []

    def listening(x: Tensor) -> Histogram:
        given.append(x)
        return summarize(x)

    monkeypatch.setattr(histogram, "summarize", listening)
    return given


def test_tensor_that_sites_share_is_counted_once(summarized) -> None:
    collector = HistogramObserver({"query", "key", "value"})
    x = randn(BATCH, SEQ, 3)
    collector.start_batch(MASK)
    for name in ("query", "key", "value"):
        collector.observe(site(name), x)
    assert len(summarized) == 1
    for seen in collector.statistics.values():
        assert_same(seen, collector.statistics["query"])
        assert seen.count == 36


def test_a_tensor_with_different_axes_is_counted_again() -> None:
    x = randn(BATCH, SEQ, SEQ)
    collector = HistogramObserver({"a", "b"})
    collector.start_batch(MASK)
    collector.observe(site("a", (1,)), x)
    collector.observe(site("b", (1, 2)), x)
    assert [seen.count for seen in collector.statistics.values()].count(12 * SEQ) == 1
    assert collector.statistics["b"].count == 3 * 3 + 4 * 4 + 5 * 5


def test_next_batch_is_counted_even_if_its_tensor_is_the_same_object() -> None:
    x = randn(BATCH, SEQ, 3)
    assert collect((site("a"), x), (site("a"), x))["a"].count == 72


def test_sites_that_share_all_tensors_are_searched_once(monkeypatch) -> None:
    searched: list[Histogram] = []

    def listening(seen: Histogram, calibrator: object, *, bits: int) -> Range:
        del calibrator
        searched.append(seen)
        return Range(amax=1.0, low=-1.0, high=1.0)

    collector = HistogramObserver({"query", "key", "value", "other"})
    for seed in range(2):
        x = randn(BATCH, SEQ, 3, seed=seed)
        collector.start_batch(MASK)
        for name in ("query", "key", "value"):
            collector.observe(site(name), x)
        collector.observe(site("other"), -x)
    monkeypatch.setattr("qdqbert.calibration.statistics.choose_range", listening)
    assert len(choose_ranges(collector.statistics, Max())) == 4
    assert len(searched) == 2


def test_sites_that_share_a_tensor_in_some_batches_keep_counts_of_their_own() -> None:
    together, apart = randn(BATCH, SEQ, 3), randn(BATCH, SEQ, 3, seed=1) * 10
    for batches in ((together, apart), (apart, together)):
        collector = HistogramObserver({"a", "b"})
        for x in batches:
            collector.start_batch(torch.ones_like(MASK))
            collector.observe(site("a"), x)
            collector.observe(site("b"), x if x is together else -x)
        assert_same(collector.statistics["a"], summarize(torch.cat([together, apart])))
        assert_same(collector.statistics["b"], summarize(torch.cat([together, -apart])))


# Merging


def test_statistics_of_two_collectors_equal_those_of_one() -> None:
    batches = [
        (site(name, axes), randn(*SHAPES[axes], seed=seed) * 10.0**seed)
        for seed in range(6)
        for name, axes in (("a", (1,)), ("b", (2, 3)))
    ]
    whole = collect(*batches)
    for cut in (2, 6, 10):
        first, second = collect(*batches[:cut]), collect(*batches[cut:])
        for merged in (merge_statistics(first, second), merge_statistics(second, first)):
            assert set(merged) == {"a", "b"}
            for name in merged:
                assert_same(merged[name], whole[name])


def test_memory_does_not_grow_with_batches() -> None:
    def size_bytes(batches: int) -> int:
        seen = collect(*((site("a"), randn(BATCH, SEQ, 3, seed=i)) for i in range(batches)))
        return sum(
            counts.untyped_storage().nbytes()
            for histogram in seen.values()
            for counts in (histogram.positive, histogram.negative)
        )

    assert size_bytes(1) == size_bytes(2) == size_bytes(50)


# Ranges


def test_range_of_each_site_is_its_own() -> None:
    one = torch.ones(BATCH, SEQ, 3)
    ranges = choose_ranges(collect((site("a"), one), (site("b"), -2 * one)), Max())
    assert ranges == {
        "a": Range(amax=1.0, low=0.0, high=1.0),
        "b": Range(amax=2.0, low=-2.0, high=0.0),
    }


@pytest.mark.parametrize("calibrator", [Max(), Percentile(99.99), Mse(), Entropy()], ids=str)
def test_the_error_names_a_site_without_data(calibrator) -> None:
    collector = HistogramObserver(["layer.0.query"])
    with pytest.raises(CalibrationError, match=r"Quantizer `layer\.0\.query` saw no data"):
        choose_ranges(collector.statistics, calibrator)
