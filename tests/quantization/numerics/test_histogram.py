from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqbert.quantization.numerics.histogram import BINS, Histogram, empty, merge, summarize

# Anything that float32 holds, with what the grid might trip over made likely.
values = st.one_of(
    st.just(0.0),
    st.floats(-4, 4, width=32),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.builds(math.ldexp, st.sampled_from([1.0, -1.0]), st.integers(-149, 127)),
    st.builds(
        lambda digits, exponent: float(np.float32(digits * 10.0**exponent)),
        st.floats(-9, 9, width=32),
        st.integers(-30, 30),
    ),
)
batches = st.lists(st.lists(values, max_size=8), min_size=1, max_size=5)


def summary_of(batch: list[float]) -> Histogram:
    return summarize(torch.tensor(batch, dtype=torch.float32))


def assert_same(a: Histogram, b: Histogram) -> None:
    assert (a.exponent, a.low, a.high) == (b.exponent, b.low, b.high)
    assert torch.equal(a.positive, b.positive)
    assert torch.equal(a.negative, b.negative)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_bins_by_hand() -> None:
    # Largest magnitude 3: the grid covers (-4, 4) in bins of 4 / 4096 = 1 / 1024.
    histogram = summarize(torch.tensor([3.0, 0.0, 1 / 1024, 1.5 / 1024, -1 / 1024, -2.0, 3.0]))
    assert (histogram.exponent, histogram.width) == (2, 1 / 1024)
    assert {i: int(n) for i, n in enumerate(histogram.positive) if n} == {0: 1, 1: 2, 3072: 2}
    assert {i: int(n) for i, n in enumerate(histogram.negative) if n} == {1: 1, 2048: 1}
    assert (histogram.low, histogram.high, histogram.amax, histogram.count) == (-2.0, 3.0, 3.0, 7)
    assert histogram.magnitudes()[1] == 3


def test_power_of_two_opens_the_next_range() -> None:
    # [k, k + 1) * width has no bin for the end of the range itself.
    assert summarize(torch.tensor([1.0])).exponent == 1
    assert summarize(torch.tensor([-0.99999994])).exponent == 0


def test_an_empty_histogram_is_the_neutral_element() -> None:
    nothing = empty()
    assert (nothing.count, nothing.amax, nothing.low, nothing.high) == (0, 0.0, math.inf, -math.inf)
    assert_same(summarize(torch.zeros(0, 3)), nothing)
    assert_same(merge(nothing, nothing), nothing)
    whole = summarize(randn(100))
    assert_same(merge(nothing, whole), whole)
    assert_same(merge(whole, nothing), whole)


def test_merging_zeros_does_not_coarsen_a_histogram() -> None:
    small = torch.tensor([0.001, -0.002])
    merged = merge(summarize(torch.zeros(2)), summarize(small))
    assert_same(merged, summarize(torch.cat([torch.zeros(2), small])))


@pytest.mark.parametrize("tiny", [1e-34, 1e-36, 1.17549435e-38, 1e-40, 1e-45], ids=str)
def test_smallest_numbers_are_counted(tiny) -> None:
    histogram = summarize(torch.tensor([tiny, -tiny, 0.0]))
    assert histogram.count == 3
    assert histogram.amax == np.float32(tiny)


@settings(max_examples=100)
@given(batches, st.randoms(use_true_random=False))
def test_merged_parts_equal_the_whole_bit_for_bit(parts, random) -> None:
    whole = summary_of([value for part in parts for value in part])
    random.shuffle(parts)
    summaries = [summary_of(part) for part in parts]
    assert_same(functools.reduce(merge, summaries), whole)
    # Any tree of merges, not only one after the other.
    middle = random.randint(0, len(parts))
    left, right = summaries[:middle], summaries[middle:]
    halves = [functools.reduce(merge, half, empty()) for half in (left, right)]
    assert_same(merge(*halves), whole)
    assert_same(merge(*reversed(halves)), whole)


@pytest.mark.parametrize(
    "x",
    [
        randn(20_000),
        randn(20_000).abs() * 1e-30,
        -randn(20_000).abs() * 1e30,
        torch.arange(-4096, 4097) / 1024,
        2.0 ** torch.arange(-20, 21).float(),
        torch.zeros(7),
    ],
    ids=["normal", "small-positive", "large-negative", "bin-edges", "powers-of-two", "zeros"],
)
def test_counts_are_numpys_on_the_same_grid(x) -> None:
    histogram = summarize(x)
    edges = np.arange(BINS + 1, dtype=np.float64) * histogram.width
    wide = x.double().numpy()
    positive, _ = np.histogram(wide[wide >= 0], bins=edges)
    negative, _ = np.histogram(-wide[wide < 0], bins=edges)
    np.testing.assert_array_equal(histogram.positive.numpy(), positive)
    np.testing.assert_array_equal(histogram.negative.numpy(), negative)
    assert histogram.count == x.numel()


def test_counts_do_not_saturate_at_two_to_the_24() -> None:
    # float32 counts, as pytorch-quantization's, stop at 16 777 216.
    histogram = summarize(torch.zeros(1).expand(17_000_000))
    assert histogram.positive[0] == histogram.count == 17_000_000


def test_merged_counts_do_not_saturate_at_two_to_the_53() -> None:
    histogram = summarize(torch.tensor([1.0, -1.0, -1.0]))
    for _ in range(60):
        histogram = merge(histogram, histogram)
    assert histogram.count == 3 * 2**60


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("place", [0, 500, -1], ids=["first", "middle", "last"])
def test_value_that_is_not_finite_is_refused(bad, place) -> None:
    x = randn(1000)
    x[place] = bad
    with pytest.raises(ValueError, match="values must be finite"):
        summarize(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_are_counted_as_float32(dtype) -> None:
    x = randn(4, 25).to(dtype)
    assert_same(summarize(x), summarize(x.float()))


def test_shape_strides_and_gradients_do_not_matter() -> None:
    x = randn(6, 8, 10)
    whole = summarize(x.reshape(-1))
    assert_same(summarize(x.transpose(0, 2)), whole)
    assert_same(summarize(x.clone().requires_grad_()), whole)


def test_long_tensors_are_counted_as_short_ones() -> None:
    x = randn(2_500_000)  # more than one chunk
    parts = torch.split(x, 333_333)
    assert_same(summarize(x), functools.reduce(merge, map(summarize, parts)))


def test_minus_zero_is_zero() -> None:
    assert_same(summarize(torch.tensor([-0.0, 1.0])), summarize(torch.tensor([0.0, 1.0])))
