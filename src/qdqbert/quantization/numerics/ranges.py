"""Search the range that codes should cover, given the histogram of a tensor.

Each calibrator finds two ranges, one for symmetric codes (`amax`) and one for affine codes (`low`,
`high`), because targets support different codes and all read the same file.

=============  ==================================================================================
`Max`          all values seen
`Percentile`   all values but a share of the largest magnitudes
`Mse`          the range with the least mean squared rounding and clipping error
`Entropy`      the range whose quantized distribution is nearest in Kullback-Leibler divergence
=============  ==================================================================================

Source: Wu et al. 2020, arXiv:2004.09602, section 4; pytorch-quantization's `HistogramCalibrator`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from qdqbert.common.errors import CalibrationError, SpecError
from qdqbert.quantization.numerics.histogram import Histogram
from qdqbert.quantization.spec import Range

# Mse tries range ends in steps of 1/128 of the observed one. A finer grid changed the error of the
# best range by less than 0.1 % on BERT's activations.
_CANDIDATES = 128


@dataclasses.dataclass(frozen=True)
class Max:
    """Cover every value that was seen."""


@dataclasses.dataclass(frozen=True)
class Percentile:
    """Cover `percentile` % of all magnitudes (symmetric) or of all values (affine).

    Attributes:
        percentile: Share in percent, above 0 and at most 100.
    """

    percentile: float

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise SpecError(f"`percentile` must be above 0 and at most 100, got {self.percentile}.")


@dataclasses.dataclass(frozen=True)
class Mse:
    """Cover the range with the least mean squared error of the codes."""


@dataclasses.dataclass(frozen=True)
class Entropy:
    """Cover the range whose quantized distribution has the least Kullback-Leibler divergence."""


Calibrator = Max | Percentile | Mse | Entropy


def choose_range(histogram: Histogram, calibrator: Calibrator, *, bits: int = 8) -> Range:
    """Return the range that a calibrator chooses for a histogram with at least one value.

    `Mse` and `Entropy` take the width of the codes into account.

    Raises:
        CalibrationError: The histogram is empty.
    """
    if histogram.count == 0:
        raise CalibrationError("No value was seen, so there is no range to choose.")
    match calibrator:
        case Max():
            amax, low, high = histogram.amax, histogram.low, histogram.high
        case Percentile(percentile):
            amax = percentile_amax(histogram, percentile)
            low, high = _affine_percentile(histogram, percentile)
        case Mse():
            amax = mse_amax(histogram, _fractions() * histogram.amax, qmax=(1 << (bits - 1)) - 1)
            low, high = _mse_affine(histogram, steps=(1 << bits) - 1)
        case Entropy():
            amax = entropy_amax(histogram, levels=1 << (bits - 1))
            threshold = entropy_amax(histogram, levels=1 << bits)
            low, high = max(histogram.low, -threshold), min(histogram.high, threshold)
    # A range never exceeds the values that were seen, and real 0 is always a code.
    return Range(
        amax=min(amax, histogram.amax),
        low=min(max(low, histogram.low), 0.0),
        high=max(min(high, histogram.high), 0.0),
    )


def percentile_amax(histogram: Histogram, percentile: float) -> float:
    """Return the `amax` that covers `percentile` % of all magnitudes, to within a bin.

    Source: pytorch-quantization's `_compute_amax_percentile`. Differs from upstream: this takes the
    right edge of the bin in which the share is reached, which covers it, and not the left one.
    """
    cumulative = histogram.magnitudes().cumsum(0).to(torch.float64)
    # With a tolerance of 1e-12, so that 100 % never exceeds the rounded float64 sum.
    wanted = cumulative[-1] * (percentile / 100) * (1 - 1e-12)
    edge = (int(torch.searchsorted(cumulative, wanted)) + 1) * histogram.width
    return min(edge, histogram.amax)


def _affine_percentile(histogram: Histogram, percentile: float) -> tuple[float, float]:
    """Cut half of the remaining share at either end of the distribution."""
    ordered = torch.cat([histogram.negative.flip(0), histogram.positive])
    tail = (100 - percentile) / 200 * histogram.count
    from_below, from_above = ordered.cumsum(0), ordered.flip(0).cumsum(0)
    bins_below = int((from_below <= tail).sum())
    bins_above = int((from_above <= tail).sum())
    return (bins_below - histogram.bins) * histogram.width, (
        histogram.bins - bins_above
    ) * histogram.width


def mse_amax(histogram: Histogram, candidates: Tensor, *, qmax: int | None) -> float:
    """Return the `amax` whose range `[-amax, amax]` has the least mean squared error.

    Args:
        histogram: Values of the tensor, at least one.
        candidates: Values of `amax` to try, `(candidates,)`. The first of several equal ones wins.
        qmax: Highest integer code, which stands for `amax`. `None` for E4M3.

    Source: pytorch-quantization's `_compute_amax_mse`, which needs a GPU.
    """
    # The error does not depend on the sign.
    counts = histogram.magnitudes().double()
    used = counts > 0
    values = histogram.centers()[used]
    counts = counts[used]
    error = torch.cat(
        [
            _squared_error_e4m3(values, counts, amax)
            if qmax is None
            else _squared_error(values, counts, scale=amax / qmax, qmin=-amax, qmax=amax)
            for amax in torch.split(candidates.double(), _CANDIDATES)
        ]
    )
    return float(candidates[error.argmin()])


def _mse_affine(histogram: Histogram, *, steps: int) -> tuple[float, float]:
    """Search the ends of affine codes in turn, with the other end fixed, until neither changes."""
    values, counts = _points(histogram)
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    for _ in range(4):
        before = (low, high)
        for end in ("low", "high"):
            lows = _fractions() * min(histogram.low, 0.0) if end == "low" else torch.tensor([low])
            highs = (
                _fractions() * max(histogram.high, 0.0) if end == "high" else (torch.tensor([high]))
            )
            lows, highs = lows.double() + 0 * highs, highs.double() + 0 * lows
            error = _squared_error(
                values, counts, scale=(highs - lows) / steps, qmin=lows, qmax=highs
            )
            best = int(error.argmin())
            low, high = float(lows[best]), float(highs[best])
        if (low, high) == before:
            break
    return low, high


def _fractions() -> Tensor:
    """Return fractions from 1 down. The first of equal candidates wins, which is the widest."""
    return torch.arange(_CANDIDATES, 0, -1, dtype=torch.float64) / _CANDIDATES


def _points(histogram: Histogram) -> tuple[Tensor, Tensor]:
    """Return centers and counts of the bins that are not empty. Shapes `(used,)`, float64."""
    centers = histogram.centers()
    values = torch.cat([-centers, centers])
    counts = torch.cat([histogram.negative, histogram.positive]).double()
    used = counts > 0
    return values[used], counts[used]


def _squared_error(
    values: Tensor, counts: Tensor, *, scale: Tensor, qmin: Tensor, qmax: Tensor
) -> Tensor:
    """Return the squared error of each candidate. `scale`, `qmin`, `qmax`: `(candidates,)`."""
    scale = scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    clipped = values.clamp(qmin[:, None], qmax[:, None])
    rounded = torch.round(clipped / scale) * scale
    return ((rounded - values) ** 2 * counts).sum(dim=1)


def _squared_error_e4m3(values: Tensor, counts: Tensor, amax: Tensor) -> Tensor:
    """Return the squared error of E4M3, whose largest value is 448. `amax`: `(candidates,)`."""
    scale = 448 / amax.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    rounded = (values * scale).clamp(-448, 448).float().to(torch.float8_e4m3fn).double() / scale
    return ((rounded - values) ** 2 * counts).sum(dim=1)


def entropy_amax(
    histogram: Histogram, *, levels: int, start_bin: int | None = None, stride: int = 1
) -> float:
    """Return the threshold with the least KL(seen || quantized).

    For a threshold of `i` bins, the `i` counts are split into `levels` groups. Each non-empty bin
    is replaced by the mean of its group's non-empty bins, and everything beyond the threshold is
    added to the last bin of the reference. With `p` the reference and `q` the replacement

        T * KL = sum p log p - sum_groups P log q - T log T + T log sum(q)

    The sums are differences of cumulative sums, so all thresholds are computed at once. Upstream's
    double loop takes minutes.

    Args:
        histogram: Values of the tensor, at least one.
        levels: Number of groups: how many magnitudes the codes can distinguish.
        start_bin: Bins of the smallest threshold that is tried. `levels` if `None`.
        stride: Bins from one threshold to the next.

    Source: NVIDIA's "8-bit inference with TensorRT" (2017); pytorch-quantization's
    `_compute_amax_entropy`. Differs from upstream: the histogram is not written to, and the widest
    of several ranges with the same divergence is chosen.
    """
    counts = histogram.magnitudes()[: histogram.used].double()
    start = levels if start_bin is None else max(start_bin, 1)
    if counts.numel() <= start:
        return histogram.amax
    # Zeros have no error in any range. As upstream, they carry no weight.
    counts[0] = counts[1]
    thresholds = torch.arange(start, counts.numel() + 1, stride)
    divergence = _divergences(counts, thresholds, levels)
    best = int(divergence.numel() - 1 - divergence.flip(0).argmin())
    return min(int(thresholds[best]) * histogram.width, histogram.amax)


def _divergences(counts: Tensor, thresholds: Tensor, levels: int) -> Tensor:
    """Return the KL divergence of each threshold, given in bins. Shape of `thresholds`."""
    total = counts.sum()
    cumulative = _cumulative(counts)
    occupied = _cumulative((counts > 0).double())
    self_information = _cumulative(torch.special.xlogy(counts, counts))

    groups = torch.arange(levels + 1)
    # Rounded up, since bin j is in group j * levels // i.
    edges = -(-groups * thresholds[:, None] // levels)
    mass = cumulative[edges].diff(dim=1)
    mean = mass / occupied[edges].diff(dim=1).clamp_min(1)

    last = counts[thresholds - 1]
    beyond = total - cumulative[thresholds]
    reference = (
        self_information[thresholds]
        - torch.special.xlogy(last, last)
        + torch.special.xlogy(last + beyond, last + beyond)
    )
    replaced = torch.special.xlogy(mass, mean).sum(dim=1) + torch.special.xlogy(beyond, mean[:, -1])
    kept = cumulative[thresholds]
    divergence = (reference - replaced) / total - torch.log(total) + torch.log(kept)
    # Values beyond a threshold whose last bin is empty have no counterpart, so KL is infinite.
    return torch.where((last == 0) & (beyond > 0), torch.inf, divergence).nan_to_num(torch.inf)


def _cumulative(x: Tensor) -> Tensor:
    """Return the sums of the first 0, 1, ... entries."""
    return torch.cat([x.new_zeros(1), x.cumsum(0)])
