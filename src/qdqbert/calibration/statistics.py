"""Collect a histogram per site while a model runs. Memory does not grow with the data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from qdqbert.common.errors import CalibrationError
from qdqbert.quantization.numerics import histogram
from qdqbert.quantization.numerics.histogram import Histogram
from qdqbert.quantization.numerics.ranges import (
    Calibrator,
    Entropy,
    Max,
    Mse,
    Percentile,
    choose_range,
)
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import Range, Site

Statistics = Mapping[str, Histogram]
"""Histogram of the values at each site, by site name."""


class Observer(Protocol):
    """Sees activations while a model runs."""

    def start_batch(self, attention_mask: Tensor) -> None:
        """Set which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""

    def observe(self, site: Site, x: Tensor) -> None:
        """See the value at a site."""


class MergeableObserver(Observer, Protocol):
    """An observer that can take over another one's statistics."""

    def absorb_(self, other: Any) -> None:
        """Merge another observer's statistics, of later batches, into this one."""


class TokenObserver:
    """An observer of tokens, without those at [PAD] positions."""

    def __init__(self) -> None:
        self._mask = torch.ones(())
        # The last tensor, and what is known of it: query, key and value read one tensor.
        self._last: tuple[Tensor, Any] | None = None

    def start_batch(self, attention_mask: Tensor) -> None:
        """See `Observer`."""
        self._mask, self._last = attention_mask.bool(), None

    def tokens(self, site: Site, x: Tensor, *, step: int = 1) -> Tensor:
        """Return each `step`th token of the texts, `(tokens, channels)`.

        `x` is the value at the site, `(batch, seq, channels)`.
        """
        x = x[:, ::step]
        # Cross-attention reads another text, whose mask is not known.
        return x[self._mask[:, ::step]] if site.sequence_axes else x.flatten(0, -2)


class CombinedObserver:
    """Pass everything on to several observers, in order."""

    def __init__(self, *observers: MergeableObserver) -> None:
        self._observers = observers

    def start_batch(self, attention_mask: Tensor) -> None:
        """See `Observer`."""
        for observer in self._observers:
            observer.start_batch(attention_mask)

    def observe(self, site: Site, x: Tensor) -> None:
        """See `Observer`."""
        for observer in self._observers:
            observer.observe(site, x)

    def absorb_(self, other: CombinedObserver) -> None:
        """See `MergeableObserver`."""
        for mine, theirs in zip(self._observers, other._observers, strict=True):
            mine.absorb_(theirs)


class HistogramObserver:
    """Keep a histogram per site.

    Values at [PAD] positions are left out: they affect no prediction, and their number depends on
    the batch. Query, key and value read the same tensor, which is counted once.

    Attributes:
        statistics: Histograms of all values so far, by site name.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.statistics: dict[str, Histogram] = {name: histogram.empty() for name in wanted}
        self._mask: Tensor | None = None
        self._last: tuple[Tensor, tuple[int, ...], Histogram] | None = None

    def start_batch(self, attention_mask: Tensor) -> None:
        """Set which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""
        mask = attention_mask.bool()
        self._mask = None if bool(mask.all()) else mask
        self._last = None

    def observe(self, site: Site, x: Tensor) -> None:
        """Add the values of a tensor.

        Raises:
            CalibrationError: A value is NaN or infinite. The message names the site.
        """
        if site.name not in self.statistics:
            return
        if self._last and self._last[0] is x and self._last[1] == site.sequence_axes:
            seen = self._last[2]
        else:
            try:
                seen = histogram.summarize(self._without_padding(site, x))
            except ValueError as error:
                raise CalibrationError(
                    f"Site `{site.name}` took a NaN or infinite value during calibration. The "
                    "float checkpoint itself fails on this text; check its weights and the data."
                ) from error
            self._last = (x, site.sequence_axes, seen)
        self.statistics[site.name] = _absorb_(self.statistics[site.name], seen)

    def absorb_(self, other: HistogramObserver) -> None:
        """See `MergeableObserver`."""
        for name, seen in other.statistics.items():
            self.statistics[name] = _absorb_(self.statistics[name], seen)

    def _without_padding(self, site: Site, x: Tensor) -> Tensor:
        if self._mask is None or not site.sequence_axes:
            return x
        if len(site.sequence_axes) == 1:
            # Whole tokens are copied ten times as fast as single values.
            return x.movedim(site.sequence_axes[0], 1)[self._mask]
        keep = torch.ones((), dtype=torch.bool, device=x.device)
        for axis in site.sequence_axes:
            shape = [1] * x.ndim
            shape[0], shape[axis] = self._mask.shape
            keep = keep & self._mask.view(shape)
        return torch.masked_select(x, keep)


def _absorb_(into: Histogram, seen: Histogram) -> Histogram:
    """Merge into the memory of `into`, since new memory for each batch would fragment the heap."""
    merged = histogram.merge(into, seen)
    into.positive.copy_(merged.positive)
    into.negative.copy_(merged.negative)
    return dataclasses.replace(merged, positive=into.positive, negative=into.negative)


def merge_statistics(a: Statistics, b: Statistics) -> dict[str, Histogram]:
    """Return the merged statistics of two observers, exactly as one observer would have them."""
    nothing = histogram.empty()
    return {
        name: histogram.merge(a.get(name, nothing), b.get(name, nothing)) for name in {**a, **b}
    }


def calibrator_of(quantizer_options: QuantizerOptions) -> Calibrator:
    """Return the calibrator that quantizer options name."""
    match quantizer_options.calibrator:
        case "max":
            return Max()
        case "mse":
            return Mse()
        case "entropy":
            return Entropy()
        case _:
            assert quantizer_options.percentile is not None
            return Percentile(quantizer_options.percentile)


def choose_ranges(
    statistics: Statistics, calibrator: Calibrator, *, bits: int = 8
) -> dict[str, Range]:
    """Return the range of each site, for codes of a number of bits.

    Raises:
        CalibrationError: A site saw no value. The message names it.
    """
    ranges: dict[str, Range] = {}
    # Sites that read the same tensor are searched once.
    answered: dict[bytes, Range] = {}
    for name, seen in statistics.items():
        if seen.count == 0:
            raise CalibrationError(
                f"Quantizer `{name}` saw no data during calibration. Run at least one batch "
                "through it."
            )
        key = _fingerprint(seen)
        if key not in answered:
            answered[key] = choose_range(seen, calibrator, bits=bits)
        ranges[name] = answered[key]
    return ranges


def _fingerprint(seen: Histogram) -> bytes:
    counts = torch.cat([seen.positive, seen.negative]).numpy().tobytes()
    return hashlib.sha256(counts + repr((seen.exponent, seen.low, seen.high)).encode()).digest()
