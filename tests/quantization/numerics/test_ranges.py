from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qdqbert.common.errors import CalibrationError, SpecError
from qdqbert.quantization.numerics.histogram import Histogram, empty, merge, summarize
from qdqbert.quantization.numerics.ranges import (
    Calibrator,
    Entropy,
    Max,
    Mse,
    Percentile,
    choose_range,
    entropy_amax,
    mse_amax,
    percentile_amax,
)
from qdqbert.quantization.spec import Range

CALIBRATORS: list[Calibrator] = [Max(), Percentile(99.9), Mse(), Entropy()]
EACH_CALIBRATOR = pytest.mark.parametrize(
    "calibrator", CALIBRATORS, ids=["max", "percentile", "mse", "entropy"]
)


def randn(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def gelu(count: int) -> torch.Tensor:
    return torch.nn.functional.gelu(randn(count) * 2)


def probabilities(count: int) -> torch.Tensor:
    return torch.softmax(randn(count).view(-1, 10) * 2, dim=1).view(-1)


def student(count: int) -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.standard_t(4, count)).float()


DISTRIBUTIONS = {
    "normal": randn,
    "shifted": lambda count: randn(count) + 1.5,
    "gelu": gelu,
    "probabilities": probabilities,
    "student": student,
    "negative": lambda count: -gelu(count) - 0.2,
}
EACH_DISTRIBUTION = pytest.mark.parametrize(
    "draw", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys()
)


def widened(low: float, high: float) -> tuple[float, float]:
    """A range that holds 0."""
    return min(low, 0.0), max(high, 0.0)


# Max


@EACH_DISTRIBUTION
def test_max_is_what_was_seen(draw) -> None:
    x = draw(5000)
    low, high = widened(float(x.min()), float(x.max()))
    assert choose_range(summarize(x), Max()) == Range(amax=float(x.abs().max()), low=low, high=high)


# Percentile


@EACH_DISTRIBUTION
@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.99, 100.0], ids=str)
def test_percentile_is_numpys_within_a_bin(draw, percentile) -> None:
    x = draw(20_010).double().numpy()
    histogram = summarize(torch.from_numpy(x))
    chosen = choose_range(histogram, Percentile(percentile))
    # Ours are the edges, away from zero, of the bins in which numpy's value lies.
    tail = (100 - percentile) / 2
    amax = np.percentile(np.abs(x), percentile, method="inverted_cdf")
    low = np.percentile(x, tail, method="inverted_cdf")
    high = np.percentile(x, 100 - tail, method="inverted_cdf")
    assert 0 <= chosen.amax - amax <= histogram.width
    low, high = widened(low, high)
    assert 0 <= low - chosen.low <= histogram.width
    assert 0 <= chosen.high - high <= histogram.width


def test_hundred_percent_is_max_beyond_float64s_integers() -> None:
    histogram = merge(summarize(randn(999)), summarize(torch.tensor([9.0])))
    many = summarize(randn(999))
    for _ in range(50):  # one 9.0 among 10^18
        many = merge(many, many)
    histogram = merge(histogram, many)
    assert choose_range(histogram, Percentile(100.0)).high == 9.0


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.001, float("nan")], ids=str)
def test_percentile_outside_of_0_to_100_is_refused(percentile) -> None:
    with pytest.raises(SpecError, match="`percentile` must be above 0 and at most 100"):
        Percentile(percentile)


# Mse


def symmetric_errors(x: np.ndarray, amax: np.ndarray) -> np.ndarray:
    """Mean squared error of int8 codes in [-127, 127], one for each `amax`, in float64."""
    scale = amax[:, None] / 127
    return ((np.rint(x / scale).clip(-127, 127) * scale - x) ** 2).mean(axis=1)


def affine_error(x: np.ndarray, low: float, high: float) -> float:
    """Mean squared error of uint8 codes with a zero point, in float64."""
    scale = (high - low) / 255
    zero_point = np.rint(-low / scale).clip(0, 255)
    codes = (np.rint(x / scale) + zero_point).clip(0, 255)
    return float((((codes - zero_point) * scale - x) ** 2).mean())


# 2 %: candidates stand 1/128 of the range apart and values at the centers of bins, where the
# brute force has finer candidates, which it fits to the very values, and each value as it is.
NEAR_BEST = 1.02


@EACH_DISTRIBUTION
def test_mse_is_the_brute_force_best_for_symmetric_codes(draw) -> None:
    x = draw(5_000).double().numpy()
    chosen = choose_range(summarize(torch.from_numpy(x)), Mse()).amax
    best = symmetric_errors(x, np.abs(x).max() * np.arange(1, 513) / 512).min()
    assert symmetric_errors(x, np.array([chosen]))[0] <= NEAR_BEST * best


@EACH_DISTRIBUTION
def test_mse_is_the_brute_force_best_for_affine_codes(draw) -> None:
    x = draw(3_000).double().numpy()
    chosen = choose_range(summarize(torch.from_numpy(x)), Mse())
    low, high = widened(x.min(), x.max())
    best = min(
        affine_error(x, low * i / 80, high * k / 80)
        for i in (range(1, 81) if low < 0 else [0])
        for k in (range(1, 81) if high > 0 else [0])
    )
    assert affine_error(x, chosen.low, chosen.high) <= NEAR_BEST * best


# Entropy


def entropy_threshold(x: np.ndarray, width: float, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Every threshold and its divergence, as pytorch-quantization's `_compute_amax_entropy`.

    One loop over thresholds, upstream's `np.digitize` groups and `scipy.stats.entropy`. As in
    `_entropy`'s docstring, the histogram is not written to.
    """
    magnitudes = np.abs(x)
    bins = int(magnitudes.max() / width) + 1  # up to the bin that holds the largest
    counts, _ = np.histogram(magnitudes, bins=np.arange(bins + 1) * width)
    counts = counts.astype(np.float64)
    counts[0] = counts[1]
    thresholds = np.arange(levels, bins + 1)
    divergences = []
    for threshold in thresholds:
        kept = counts[:threshold]
        occupied = kept > 0
        edges = np.linspace(0, threshold, levels + 1)
        groups = np.digitize(np.arange(threshold), edges) - 1
        mass = np.bincount(groups[occupied], kept[occupied], minlength=levels)
        members = np.bincount(groups[occupied], minlength=levels)
        replaced = np.where(occupied, (mass / np.maximum(members, 1))[groups], 0.0)
        reference = kept.copy()
        reference[-1] += counts[threshold:].sum()
        divergences.append(stats.entropy(reference, replaced))
    return thresholds * width, np.array(divergences)


def widest_best(thresholds: np.ndarray, divergences: np.ndarray, largest: float) -> float:
    last = len(divergences) - 1 - int(np.argmin(divergences[::-1]))
    return min(float(thresholds[last]), largest)


# Scaled to end just above a power of two, where the grid has the fewest bins to loop over.
@pytest.mark.parametrize(
    "x",
    [
        randn(3000) * 0.49,
        torch.cat([randn(20_000), torch.tensor([33.0])]),
        gelu(5000) * 0.49,
        torch.cat([randn(2000).abs() * 0.05, torch.ones(2000)]),
    ],
    ids=["normal", "outlier-on-an-edge", "gelu", "mass-at-a-power-of-two"],
)
@pytest.mark.usual("mass-*")
def test_entropy_is_pytorch_quantizations(x) -> None:
    histogram = summarize(x)
    chosen = choose_range(histogram, Entropy())
    wide = x.double().numpy()
    search = functools.partial(entropy_threshold, wide, histogram.width)
    amax = widest_best(*search(levels=128), histogram.amax)
    assert chosen.amax == amax
    threshold = widest_best(*search(levels=256), histogram.amax)
    low, high = widened(max(wide.min(), -threshold), min(wide.max(), threshold))
    assert (chosen.low, chosen.high) == (low, high)


# All calibrators


@pytest.mark.parametrize("calibrator", [Mse(), Entropy()], ids=["mse", "entropy"])
def test_outlier_is_cut(calibrator) -> None:
    x = torch.cat([randn(1_000_000), torch.tensor([50.0])])
    chosen = choose_range(summarize(x), calibrator)
    # Clipping to a costs (50 - a)^2, rounding n values n * (a / 127)^2 / 12 for int8, and with
    # 1 / 255 of the range for uint8. For a million they balance at 8 and at 19.
    assert 3 < chosen.amax < 12
    assert 3 < chosen.high < 25
    assert -6 < chosen.low < -3


@EACH_CALIBRATOR
@pytest.mark.parametrize("count", [1, 1000], ids=["single", "many"])
@pytest.mark.parametrize("value", [3.0, -3.0, 1.0, 0.1, -1e-20, 1e20], ids=str)
def test_equal_values_are_all_covered(calibrator, count, value) -> None:
    x = torch.full((count,), value)
    value = float(x[0])
    chosen = choose_range(summarize(x), calibrator)
    low, high = widened(value, value)
    assert chosen == Range(amax=abs(value), low=low, high=high)


@EACH_CALIBRATOR
def test_zeros_have_an_empty_range(calibrator) -> None:
    assert choose_range(summarize(torch.zeros(9)), calibrator) == Range(amax=0, low=0, high=0)


@EACH_CALIBRATOR
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_range_of_one_sided_values_ends_at_zero(calibrator, sign) -> None:
    chosen = choose_range(summarize(sign * randn(5000).abs()), calibrator)
    assert (chosen.low if sign > 0 else chosen.high) == 0.0
    assert (chosen.high if sign > 0 else -chosen.low) > 1.0


@EACH_CALIBRATOR
@settings(max_examples=10)
@given(
    x=st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=12),
    scale=st.integers(-40, 40),
)
def test_range_holds_zero_and_stays_within_what_was_seen(calibrator, x, scale) -> None:
    values = torch.tensor(x) * 2.0**scale
    chosen = choose_range(summarize(values), calibrator)
    low, high = widened(float(values.min()), float(values.max()))
    assert low <= chosen.low <= 0 <= chosen.high <= high
    assert 0 <= chosen.amax <= float(values.abs().max())


@EACH_CALIBRATOR
@pytest.mark.parametrize("doublings", [-40, 13], ids=str)
def test_scaled_values_have_the_scaled_range(calibrator, doublings) -> None:
    # A power of two moves the grid along, so no value is rounded differently.
    x = gelu(5000)
    chosen = choose_range(summarize(x), calibrator)
    scaled = choose_range(summarize(x * 2.0**doublings), calibrator)
    assert scaled == Range(
        amax=chosen.amax * 2.0**doublings,
        low=chosen.low * 2.0**doublings,
        high=chosen.high * 2.0**doublings,
    )


@EACH_CALIBRATOR
def test_empty_histogram_is_refused(calibrator) -> None:
    with pytest.raises(CalibrationError, match="No value was seen"):
        choose_range(empty(), calibrator)


# Other widths, first candidates and strides


def counted(x: np.ndarray, histogram: Histogram) -> np.ndarray:
    """Counts of magnitudes by numpy, up to the bin that holds the largest."""
    index = np.floor(np.abs(x) / histogram.width).astype(np.int64)
    return np.bincount(index)


def divergence_by_loops(counts: np.ndarray, threshold: int, levels: int) -> float:
    """KL(seen || quantized) written out, bin by bin and group by group."""
    kept = counts[:threshold].astype(np.float64)
    reference = kept.copy()
    reference[-1] += counts[threshold:].sum()
    quantized = np.zeros(threshold)
    for group in range(levels):
        members = [
            bin_
            for bin_ in range(threshold)
            if bin_ * levels // threshold == group and kept[bin_] > 0
        ]
        for bin_ in members:
            quantized[bin_] = sum(kept[member] for member in members) / len(members)
    return float(stats.entropy(reference, quantized))


def entropy_by_loops(
    x: np.ndarray, histogram: Histogram, levels: int, start: int, stride: int
) -> float:
    counts = counted(x, histogram)
    counts[0] = counts[1]
    thresholds = list(range(start, len(counts) + 1, stride))
    divergences = np.array([divergence_by_loops(counts, each, levels) for each in thresholds])
    # Sums in another order: of what differs by less than 1e-12 the widest is taken.
    best = max(np.flatnonzero(divergences <= divergences.min() + 1e-12))
    return min(thresholds[best] * histogram.width, np.abs(x).max())


@pytest.mark.parametrize("levels", [2, 4, 8, 16], ids=str)
@pytest.mark.parametrize(
    ("start", "stride"), [(None, 1), (3, 1), (10, 1), (16, 3), (5, 7)], ids=str
)
@pytest.mark.parametrize("draw", [randn, gelu, student], ids=["normal", "gelu", "student"])
def test_entropy_of_any_levels_start_and_stride_is_the_double_loops(
    draw, levels, start, stride
) -> None:
    x = draw(3000)
    histogram = summarize(x, bins=64)
    amax = entropy_amax(histogram, levels=levels, start_bin=start, stride=stride)
    first = levels if start is None else start
    assert amax == entropy_by_loops(x.double().numpy(), histogram, levels, first, stride)


def test_entropy_with_no_candidate_covers_all() -> None:
    histogram = summarize(randn(1000), bins=64)
    assert entropy_amax(histogram, levels=4, start_bin=64) == histogram.amax


@pytest.mark.parametrize("qmax", [1, 3, 7, 127, 255, 32767], ids=str)
@pytest.mark.parametrize("draw", [randn, gelu, student], ids=["normal", "gelu", "student"])
@pytest.mark.parametrize("count", [1, 50, 300], ids=str)
def test_mse_of_any_candidates_is_the_brute_force_best(draw, qmax, count) -> None:
    x = draw(3000).double().numpy()
    histogram = summarize(torch.from_numpy(x), bins=256)
    candidates = np.linspace(0.05, 1.0, count) * histogram.amax
    amax = mse_amax(histogram, torch.from_numpy(candidates), qmax=qmax)
    counts = counted(x, histogram)
    centers = (np.arange(len(counts)) + 0.5) * histogram.width
    errors = []
    for candidate in candidates:
        step = candidate / qmax
        rounded = np.rint(centers / step).clip(-qmax, qmax) * step
        errors.append(((rounded - centers) ** 2 * counts).sum())
    assert amax in candidates
    assert errors[list(candidates).index(amax)] <= min(errors) * (1 + 1e-9)


@pytest.mark.parametrize("bins", [2, 64, 4096], ids=str)
@pytest.mark.parametrize("percentile", [0.001, 1.0, 50.0, 99.0, 99.99, 100.0], ids=str)
@EACH_DISTRIBUTION
def test_percentile_of_any_grid_covers_numpys_by_less_than_a_bin(draw, percentile, bins) -> None:
    x = draw(20_010)
    histogram = summarize(x, bins=bins)
    amax = percentile_amax(histogram, percentile)
    wanted = np.percentile(np.abs(x.double().numpy()), percentile, method="inverted_cdf")
    assert 0 <= amax - wanted <= histogram.width


@EACH_DISTRIBUTION
def test_mse_weighs_the_bits_that_there_are(draw) -> None:
    x = draw(4000)
    histogram = summarize(x)
    wide = x.double().numpy()
    candidates = np.abs(wide).max() * np.arange(1, 513) / 512
    chosen = {bits: choose_range(histogram, Mse(), bits=bits) for bits in (4, 8)}
    for bits, found in chosen.items():
        highest = 2 ** (bits - 1) - 1
        steps = np.append(candidates, found.amax)[:, None] / highest
        errors = ((np.rint(wide / steps).clip(-highest, highest) * steps - wide) ** 2).mean(axis=1)
        assert errors[-1] <= NEAR_BEST * errors[:-1].min()
    # Fewer codes have coarser steps, for which it pays to clip more.
    assert chosen[4].amax <= chosen[8].amax
    assert chosen[4].high - chosen[4].low <= chosen[8].high - chosen[8].low


def test_entropy_weighs_the_bits_that_there_are() -> None:
    x = randn(3000) * 0.49
    histogram = summarize(x, bins=256)
    chosen = choose_range(histogram, Entropy(), bits=4)
    wide = x.double().numpy()
    # 8 magnitudes of signed codes, 16 of unsigned ones.
    assert chosen.amax == entropy_by_loops(wide, histogram, 8, 8, 1)
    threshold = entropy_by_loops(wide, histogram, 16, 16, 1)
    assert (chosen.low, chosen.high) == (max(wide.min(), -threshold), min(wide.max(), threshold))
