"""Histogram of a tensor's values in one pass and fixed memory, which merges exactly.

Counts live on a grid of `2 * bins` bins over `(-2^e, 2^e)`, where `2^e` is the smallest power of
two above the largest magnitude seen. A larger value doubles the range, and adjacent bins are
summed. Bin edges are dyadic, so `floor(x / width)` and its halving are exact in floating point.
Counts depend only on the values, not on batches, their order, or how the work was split. Two
halves merged equal the whole, bit for bit.

pytorch-quantization takes the bin width from the first batch, so its histogram can grow without
bound, and counts in float32, which stops at 2^24. onnxruntime keeps every tensor until the end.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

BINS = 4096
"""Default number of bins on each side of zero, a power of two.

Between half and all of them lie below the largest magnitude.
"""

# The grid is never finer than this, since `BINS / 2^exponent` has to be a float32.
_LOWEST_EXPONENT = -100
# Number of values that are binned at a time, so that intermediate results stay in the cache.
_CHUNK = 2**17
_SIGN_BIT = 31


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram:
    """Distribution of the values that one tensor took.

    Attributes:
        exponent: The grid covers `(-2^exponent, 2^exponent)`.
        positive: Number of values `x >= 0` in each bin `[k, k + 1) * width`. Shape `(bins,)`,
            int64, which cannot saturate before 9e18 values.
        negative: The same for `-x` of values `x < 0`.
        low: Smallest value seen, exact. `inf` before the first.
        high: Largest value seen, exact. `-inf` before the first.
    """

    exponent: int
    positive: Tensor
    negative: Tensor
    low: float
    high: float

    @property
    def count(self) -> int:
        """Number of values seen."""
        return int(self.positive.sum() + self.negative.sum())

    @property
    def amax(self) -> float:
        """Largest magnitude seen, exact. 0 before the first."""
        return max(self.high, -self.low, 0.0)

    @property
    def width(self) -> float:
        """Width of a bin in real units, a power of two."""
        return math.ldexp(1.0, self.exponent) / self.bins

    @property
    def bins(self) -> int:
        """Number of bins on each side of zero."""
        return self.positive.numel()

    @property
    def used(self) -> int:
        """Number of bins up to the largest magnitude seen, at least 1."""
        return min(int(self.amax / self.width) + 1, self.bins)

    def centers(self) -> Tensor:
        """Return the centers of the bins of magnitudes. Shape `(bins,)`, float64."""
        return (torch.arange(self.bins, dtype=torch.float64) + 0.5) * self.width

    def magnitudes(self) -> Tensor:
        """Return the counts of magnitudes, of both signs. Shape `(bins,)`, int64."""
        return self.positive + self.negative


def empty(bins: int = BINS) -> Histogram:
    """Return a histogram without values. `bins` on each side of zero are a power of two."""
    return Histogram(
        exponent=_LOWEST_EXPONENT,
        # On the CPU, even while a model is built on the meta device.
        positive=torch.zeros(bins, dtype=torch.int64, device="cpu"),
        negative=torch.zeros(bins, dtype=torch.int64, device="cpu"),
        low=math.inf,
        high=-math.inf,
    )


def summarize(x: Tensor, bins: int = BINS) -> Histogram:
    """Return the histogram of the values of a tensor.

    Args:
        x: Any shape and device, floating point.
        bins: Number of bins on each side of zero, a power of two.

    Raises:
        ValueError: A value is NaN or infinite.
    """
    flat = x.detach().reshape(-1).to(torch.float32)
    if flat.numel() == 0:
        return empty(bins)
    low, high = (float(end) for end in torch.aminmax(flat))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("values must be finite")
    amax = max(high, -low)
    exponent = max(math.frexp(amax)[1] if amax > 0 else _LOWEST_EXPONENT, _LOWEST_EXPONENT)
    counts = torch.zeros(2 * bins, dtype=torch.int64, device=flat.device)
    # Scaling by a power of two is exact, so values on bin edges are binned exactly too.
    to_bins = math.ldexp(bins, -exponent)
    # One allocation for all chunks: an allocation per chunk takes as long as the counting.
    size = min(_CHUNK, flat.numel())
    values = torch.empty(size, device=flat.device)
    signs, indices = torch.empty((2, size), dtype=torch.int32, device=flat.device)
    for chunk in torch.split(flat, _CHUNK):
        x, sign, index = (each[: len(chunk)] for each in (values, signs, indices))
        # Turns -0 into 0.
        torch.add(chunk, 0.0, out=x)
        # -1 for values below zero, else 0.
        torch.bitwise_right_shift(x.view(torch.int32), _SIGN_BIT, out=sign)
        # Rounded towards zero, so that both signs have a bin at it. int32 is six times as fast as
        # int64 here.
        index.copy_(x.mul_(to_bins)).add_(sign).add_(bins)
        counts += torch.bincount(index, minlength=2 * bins)
    negative, positive = counts.cpu().view(2, bins)
    return Histogram(
        exponent=exponent, positive=positive, negative=negative.flip(0), low=low, high=high
    )


def merge(a: Histogram, b: Histogram) -> Histogram:
    """Merge two histograms. Exact, commutative and associative."""
    exponent = max(a.exponent, b.exponent)
    return Histogram(
        exponent=exponent,
        positive=_coarsen(a.positive, exponent - a.exponent)
        + _coarsen(b.positive, exponent - b.exponent),
        negative=_coarsen(a.negative, exponent - a.exponent)
        + _coarsen(b.negative, exponent - b.exponent),
        low=min(a.low, b.low),
        high=max(a.high, b.high),
    )


def _coarsen(counts: Tensor, doublings: int) -> Tensor:
    """Return the counts on a range that is doubled so many times, by summing adjacent bins."""
    if doublings == 0:
        return counts
    bins = counts.numel()
    group = min(2**doublings, bins)
    coarse = torch.zeros_like(counts)
    coarse[: bins // group] = counts.view(-1, group).sum(dim=1)
    return coarse
