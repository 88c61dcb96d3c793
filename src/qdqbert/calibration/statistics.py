"""Collects a histogram a site while a model runs. Memory does not grow with the data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor

from qdqbert.errors import CalibrationError
from qdqbert.numerics import histogram
from qdqbert.numerics.histogram import Histogram
from qdqbert.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile, choose_range
from qdqbert.recipes import QuantizerOptions
from qdqbert.spec import Range, Site

Statistics = Mapping[str, Histogram]
"""What each site saw, by its name."""


class Observer(Protocol):
    """Something that is shown activations while a model runs."""

    def start_batch(self, attention_mask: Tensor) -> None:
        """Says which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""

    def observe(self, site: Site, x: Tensor) -> None:
        """Shows the value at a site."""


class CombinedObserver:
    """Shows all to several watchers, in their order."""

    def __init__(self, *watchers: Observer) -> None:
        self._watchers = watchers

    def start_batch(self, attention_mask: Tensor) -> None:
        """See `Observer`."""
        for observer in self._watchers:
            observer.start_batch(attention_mask)

    def observe(self, site: Site, x: Tensor) -> None:
        """See `Observer`."""
        for observer in self._watchers:
            observer.observe(site, x)


class HistogramObserver:
    """Takes tensors in, keeps a histogram a site.

    Values at [PAD] positions are left out: they are no part of any answer, and how many there
    are depends on the batch. Query, key and value read one tensor: it is counted once.

    Attributes:
        statistics: What was collected so far.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.statistics: dict[str, Histogram] = {name: histogram.empty() for name in wanted}
        self._mask: Tensor | None = None
        self._last: tuple[Tensor, tuple[int, ...], Histogram] | None = None

    def start_batch(self, attention_mask: Tensor) -> None:
        """Says which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""
        mask = attention_mask.bool()
        self._mask = None if bool(mask.all()) else mask
        self._last = None

    def observe(self, site: Site, x: Tensor) -> None:
        """Adds the values of a tensor.

        Raises:
            CalibrationError: A value is NaN or infinite; names the site.
        """
        if site.name not in self.statistics:
            return
        if self._last and self._last[0] is x and self._last[1] == site.sequence_axes:
            seen = self._last[2]
        else:
            try:
                seen = histogram.summarise(self._without_padding(site, x))
            except ValueError as error:
                raise CalibrationError(
                    f"Site `{site.name}` took a NaN or infinite value during calibration. The "
                    "float checkpoint itself fails on this text; check its weights and the data."
                ) from error
            self._last = (x, site.sequence_axes, seen)
        self.statistics[site.name] = _absorb_(self.statistics[site.name], seen)

    def _without_padding(self, site: Site, x: Tensor) -> Tensor:
        if self._mask is None:
            return x
        keep = torch.ones((), dtype=torch.bool, device=x.device)
        for axis in site.sequence_axes:
            shape = [1] * x.ndim
            shape[0], shape[axis] = self._mask.shape
            keep = keep & self._mask.view(shape)
        return torch.masked_select(x, keep)


def _absorb_(into: Histogram, seen: Histogram) -> Histogram:
    """Merges in the memory of `into`: a new place for each batch would leave the heap in holes."""
    merged = histogram.merge(into, seen)
    into.positive.copy_(merged.positive)
    into.negative.copy_(merged.negative)
    return dataclasses.replace(merged, positive=into.positive, negative=into.negative)


def merge_statistics(a: Statistics, b: Statistics) -> dict[str, Histogram]:
    """Statistics of all that either saw, exactly as if one had seen it all."""
    nothing = histogram.empty()
    return {
        name: histogram.merge(a.get(name, nothing), b.get(name, nothing)) for name in {**a, **b}
    }


def calibrator_of(quantizer_options: QuantizerOptions) -> Calibrator:
    """The calibrator that switches name."""
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
    """The range of each site, for codes of that many bits.

    Raises:
        CalibrationError: A site saw no value; names it.
    """
    ranges: dict[str, Range] = {}
    answered: dict[bytes, Range] = {}  # sites that read one tensor are searched once
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
