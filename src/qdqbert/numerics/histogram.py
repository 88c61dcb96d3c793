"""Streaming statistics of one tensor: fixed size, one pass, exactly mergeable.

Counts live on a grid of `2 * bins` bins over `(-2^e, 2^e)`, where `2^e` is the smallest power of
two above the largest magnitude seen. A larger value doubles the range: neighbouring bins are
summed. Bin edges are dyadic, so `floor(x / width)` is exact in floating point and halving it is
too: the counts depend on the multiset of values only, not on batches, their order, or on how
the work was split. Two halves merged equal the whole, bit for bit.

pytorch-quantization fixes the bin width by the first batch (its histogram can grow without
bound) and counts in float32 (which stops at 2^24); onnxruntime keeps every tensor until the end.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

BINS = 4096
"""Bins on each side of zero; between half and all of them lie below the largest magnitude. Other
numbers have to be powers of two as well."""

_LOWEST_EXPONENT = -100
# The grid gets no finer than this: `BINS / 2^exponent` has to be a float32.
_CHUNK = 2**17
# Values binned at a time: what is made of them stays in the cache.
_SIGN_BIT = 31


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histogram:
    """Distribution of the values that one tensor took.

    Attributes:
        exponent: The grid covers `(-2^exponent, 2^exponent)`.
        positive: How many values `x >= 0` fell in each bin `[k, k + 1) * width`. Shape
            `(bins,)`, int64: it cannot saturate before 9e18 values.
        negative: The same for `-x` of values `x < 0`.
        low: Smallest value seen, exact; `inf` before the first.
        high: Largest value seen, exact; `-inf` before the first.
    """

    exponent: int
    positive: Tensor
    negative: Tensor
    low: float
    high: float

    @property
    def count(self) -> int:
        """How many values were seen."""
        return int(self.positive.sum() + self.negative.sum())

    @property
    def amax(self) -> float:
        """Largest magnitude seen, exact; 0 before the first."""
        return max(self.high, -self.low, 0.0)

    @property
    def width(self) -> float:
        """Width of a bin, a power of two, real units."""
        return math.ldexp(1.0, self.exponent) / self.bins

    @property
    def bins(self) -> int:
        """Bins on each side of zero."""
        return self.positive.numel()

    @property
    def used(self) -> int:
        """Bins of magnitudes up to the largest seen, at least 1."""
        return min(int(self.amax / self.width) + 1, self.bins)

    def centres(self) -> Tensor:
        """Middles of the bins of magnitudes. Shape `(bins,)`, float64."""
        return (torch.arange(self.bins, dtype=torch.float64) + 0.5) * self.width

    def magnitudes(self) -> Tensor:
        """Counts of magnitudes: both sides folded. Shape `(bins,)`, int64."""
        return self.positive + self.negative


def empty(bins: int = BINS) -> Histogram:
    """The histogram of no values, with so many bins on each side: a power of two."""
    return Histogram(
        exponent=_LOWEST_EXPONENT,
        # On the CPU though a model may be built on the meta device.
        positive=torch.zeros(bins, dtype=torch.int64, device="cpu"),
        negative=torch.zeros(bins, dtype=torch.int64, device="cpu"),
        low=math.inf,
        high=-math.inf,
    )


def summarise(x: Tensor, bins: int = BINS) -> Histogram:
    """Histogram of the values of one tensor.

    Args:
        x: Any shape and device, floating point.
        bins: Bins on each side of zero: a power of two.

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
    # Scaling by a power of two is exact, so bin edges are hit exactly as well.
    to_bins = math.ldexp(bins, -exponent)
    # Memory once for all chunks: to ask for it each time costs as much as the counting.
    size = min(_CHUNK, flat.numel())
    values = torch.empty(size, device=flat.device)
    signs, indices = torch.empty((2, size), dtype=torch.int32, device=flat.device)
    for chunk in torch.split(flat, _CHUNK):
        x, sign, index = (each[: len(chunk)] for each in (values, signs, indices))
        torch.add(chunk, 0.0, out=x)  # -0 becomes 0
        torch.bitwise_right_shift(x.view(torch.int32), _SIGN_BIT, out=sign)  # -1 below zero
        # Towards zero, so that both sides have a bin at it. 32 bits count six times as fast as 64.
        index.copy_(x.mul_(to_bins)).add_(sign).add_(bins)
        counts += torch.bincount(index, minlength=2 * bins)
    negative, positive = counts.cpu().view(2, bins)
    return Histogram(
        exponent=exponent, positive=positive, negative=negative.flip(0), low=low, high=high
    )


def merge(a: Histogram, b: Histogram) -> Histogram:
    """Histogram of the values of both: exact, commutative and associative."""
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
    """Counts on a range doubled so many times: neighbouring bins are summed."""
    if doublings == 0:
        return counts
    bins = counts.numel()
    group = min(2**doublings, bins)
    coarse = torch.zeros_like(counts)
    coarse[: bins // group] = counts.view(-1, group).sum(dim=1)
    return coarse
