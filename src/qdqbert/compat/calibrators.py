"""Calibrators of a quantizer: they collect tensors and compute an `amax`.

Names, arguments and errors are as in pytorch-quantization's `calib`. The histogram and the range
search are this package's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qdqbert.quantization.numerics import histogram
from qdqbert.quantization.numerics.affine import reduce_amax
from qdqbert.quantization.numerics.fake_quantization import Axis, reduced_axes
from qdqbert.quantization.numerics.ranges import entropy_amax, mse_amax, percentile_amax
from qdqbert.quantization.spec import code_bounds

_LOG = logging.getLogger(__name__)

METHODS = ("entropy", "mse", "percentile")
"""Methods of `HistogramCalibrator.compute_amax`."""


class Calibrator:
    """Base class of calibrators, for your own ones too."""

    def __init__(self, num_bits: int | tuple[int, int], axis: Axis, unsigned: bool) -> None:
        self._num_bits = num_bits
        self._axis = axis
        self._unsigned = unsigned

    def describe(self, num_bits: int | tuple[int, int], axis: Axis, unsigned: bool) -> None:
        """Change the codes that the range is for."""
        self._num_bits, self._axis, self._unsigned = num_bits, axis, unsigned

    @property
    def axis(self) -> Axis:
        """Axes that keep one range per index."""
        return self._axis

    def collect(self, x: Tensor) -> None:
        """Collect a tensor."""
        raise NotImplementedError

    def reset(self) -> None:
        """Drop all collected values."""
        raise NotImplementedError

    def compute_amax(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the range of all collected tensors, or `None` if there are none."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"num_bits={self._num_bits} axis={self._axis} unsigned={self._unsigned}"


class MaxCalibrator(Calibrator):
    """Keep the largest magnitude over all axes that are not kept.

    Attributes:
        amaxs: The largest magnitudes of each tensor seen, if `track_amax`.

    Source: pytorch-quantization's `MaxCalibrator`. Differs from upstream: a negative `axis` works,
    and a NaN or an infinity is refused when it is collected.
    """

    def __init__(
        self, num_bits: int | tuple[int, int], axis: Axis, unsigned: bool, track_amax: bool = False
    ) -> None:
        super().__init__(num_bits, axis, unsigned)
        self._track_amax = track_amax
        if track_amax:
            self._amaxs: list[NDArray[Any]] = []
        self._calib_amax: Tensor | None = None

    @property
    def amaxs(self) -> list[NDArray[Any]]:
        """Largest magnitudes of each tensor, if `track_amax` is set."""
        return self._amaxs

    def collect(self, x: Tensor) -> None:
        """Collect a tensor.

        Raises:
            RuntimeError: A kept axis has another size than before.
            ValueError: A value is NaN or infinite.
        """
        local = reduce_amax(x.detach(), axis=reduced_axes(self._axis, x.dim()))
        if not bool(torch.isfinite(local).all()):
            raise ValueError("values must be finite")
        if self._calib_amax is None:
            self._calib_amax = local.clone()
        elif local.shape != self._calib_amax.shape:
            raise RuntimeError("amax shape changed!")
        else:
            self._calib_amax.copy_(torch.maximum(self._calib_amax, local))
        if self._track_amax:
            self._amaxs.append(local.cpu().numpy())

    def reset(self) -> None:
        """Drop all collected values."""
        self._calib_amax = None
        if self._track_amax:
            self._amaxs = []

    def compute_amax(self) -> Tensor | None:
        """Return the largest magnitude. Kept axes have their size, and others have size 1."""
        return self._calib_amax

    def __str__(self) -> str:
        return f"MaxCalibrator(track_amax={self._track_amax})"

    def __repr__(self) -> str:
        tracked = f" amaxs={self._amaxs}" if self._track_amax else ""
        return (
            f"MaxCalibrator({super().__repr__()} calib_amax={self._calib_amax} "
            f"track_amax={self._track_amax}{tracked})"
        )


class HistogramCalibrator(Calibrator):
    """Keep a histogram of magnitudes, from which a range is searched.

    Source: pytorch-quantization's `HistogramCalibrator`. Differs from upstream: counts are exact
    int64, while float32 counts stop at 2^24; the number of bins is bounded, whatever the first
    tensor was; batches and their order make no difference; entropy takes milliseconds and does not
    change the histogram; mse runs on any device; the range of a percentile covers that percentile.
    """

    def __init__(
        self,
        num_bits: int | tuple[int, int],
        axis: Axis,
        unsigned: bool,
        num_bins: int = 2048,
        grow_method: str | None = None,
        skip_zeros: bool = False,
        torch_hist: bool = True,
    ) -> None:
        """Create an empty calibrator.

        Args:
            num_bits: Width of the codes, for `mse` and `entropy`.
            axis: Must be `None`.
            unsigned: Whether codes start at 0.
            num_bins: Smallest number of bins below the largest magnitude. Up to four times as many
                are kept, since the width of the grid is a power of two.
            grow_method: Ignored, as upstream.
            skip_zeros: Do not count zeros.
            torch_hist: Show `_calib_hist` and `_calib_bin_edges` as tensors, not as arrays.

        Raises:
            NotImplementedError: `axis` is not `None`.
            ValueError: `num_bins` is not above 0.
        """
        super().__init__(num_bits, axis, unsigned)
        self._check_axis()
        if grow_method is not None:
            _LOG.warning("grow_method is deprecated. Got %s, ignored!", grow_method)
        self._histogram = histogram.empty()
        self._num_bins = num_bins
        self._skip_zeros = skip_zeros
        self._torch_hist = torch_hist

    def _check_axis(self) -> None:
        if self._axis is not None:
            raise NotImplementedError(
                "Calibrator histogram collection only supports per tensor scaling"
            )

    @property
    def _num_bins(self) -> int:
        """Smallest number of bins. Users of upstream set it before they collect."""
        return self._least_bins

    @_num_bins.setter
    def _num_bins(self, value: int) -> None:
        if value < 1:
            raise ValueError(f"num_bins must be above 0, not {value}.")
        if self._histogram.count:
            raise ValueError("num_bins cannot change once values were seen; call `reset()` first.")
        self._least_bins = value
        self.reset()

    def reset(self) -> None:
        """Drop all collected values."""
        # Between half and all of the grid's bins lie below the largest magnitude.
        self._histogram = histogram.empty(2 << (self._least_bins - 1).bit_length())

    def collect(self, x: Tensor) -> None:
        """Collect a tensor.

        Raises:
            ValueError: A value is NaN or infinite.
        """
        self._check_axis()
        x = x.detach()
        if self._skip_zeros:
            x = x[x != 0]
        self._histogram = histogram.merge(
            self._histogram, histogram.summarize(x, self._histogram.bins)
        )

    def compute_amax(
        self, method: str, *, stride: int = 1, start_bin: int = 128, percentile: float = 99.99
    ) -> Tensor | None:
        """Return the range that a method chooses for all collected tensors.

        Args:
            method: `"entropy"`, `"mse"` or `"percentile"`.
            stride: Bins from one candidate to the next, for entropy and mse.
            start_bin: First candidate.
            percentile: Share of magnitudes to cover, 0 to 100.

        Returns:
            A float32 scalar, or `None` if nothing was collected.

        Raises:
            TypeError: The method is unknown.
            ValueError: The percentile is out of range.
        """
        if method not in METHODS:
            raise TypeError(f"Unknown calibration method {method}")
        if method == "percentile" and not 0 <= percentile <= 100:
            raise ValueError("Invalid percentile. Must be in range 0 <= percentile <= 100.")
        if self._histogram.count == 0:
            return None
        match method:
            case "percentile":
                amax = percentile_amax(self._histogram, percentile)
            case "mse":
                candidates = self._histogram.centers()[start_bin : self._histogram.used : stride]
                if candidates.numel() == 0:
                    candidates = torch.tensor([self._histogram.amax])
                amax = mse_amax(
                    self._histogram,
                    candidates.clamp_max(self._histogram.amax),
                    qmax=None if self._num_bits == (4, 3) else self._qmax(method),
                )
            case _:
                amax = entropy_amax(
                    self._histogram,
                    levels=self._qmax(method) + 1,
                    start_bin=start_bin,
                    stride=stride,
                )
        return torch.tensor(amax, dtype=torch.float32)

    def _qmax(self, method: str) -> int:
        if not isinstance(self._num_bits, int) or self._num_bits < 1:
            raise TypeError(
                f"Invalid num_bits for {method}: {self._num_bits}. It weighs integer codes."
            )
        return max(code_bounds(self._num_bits, signed=not self._unsigned)[1], 1)

    @property
    def _calib_hist(self) -> Tensor | NDArray[Any] | None:
        """Counts of magnitudes, under the name that users of upstream read. Shape `(bins,)`."""
        if self._histogram.count == 0:
            return None
        counts = self._histogram.magnitudes()[: self._histogram.used]
        return counts if self._torch_hist else counts.numpy()

    @property
    def _calib_bin_edges(self) -> Tensor | NDArray[Any] | None:
        """Edges of `_calib_hist`. Shape `(bins + 1,)`."""
        if self._histogram.count == 0:
            return None
        edges = torch.arange(self._histogram.used + 1, dtype=torch.float64)
        edges = edges * self._histogram.width
        return edges.float() if self._torch_hist else edges.numpy()

    def _short_edges(self) -> str:
        edges = self._calib_bin_edges
        if edges is None:
            return "None"
        return f"[{float(edges[0]):.3f}, ..., {float(edges[-1]):.3f}]({len(edges)})"

    def __str__(self) -> str:
        return f"HistogramCalibrator(calib_bin_edges={self._short_edges()})"

    def __repr__(self) -> str:
        return (
            f"HistogramCalibrator({super().__repr__()} calib_bin_edges={self._short_edges()} "
            f"calib_hist={self._histogram.count} values)"
        )


def calibrate_weights(
    model: nn.Module,
    method: str = "percentile",
    perchannel: bool = True,
    percentile: float = 99.99,
    num_bins: int = 2048,
    advance: Callable[[], object] | None = None,
) -> None:
    """Set the `amax` of every weight quantizer of a model from its weight.

    Args:
        model: Modules with `weight` and `weight_quantizer` are calibrated.
        method: `"max"`, `"mse"` or `"percentile"`.
        perchannel: Use a range per output channel (axis 1 of transposed convolutions, else 0).
        percentile: Share of magnitudes to cover, per channel.
        num_bins: See `HistogramCalibrator`.
        advance: Called after each module.

    Raises:
        TypeError: The method is unknown.

    Source: pytorch-quantization's `calibrate_weights`. Differs from upstream: `perchannel=False`
    works with "max" and obeys `num_bins`; the bits of each quantizer count.
    """
    if method not in ("max", "mse", "percentile"):
        raise TypeError(f"Unsupported calibration method {method}")
    for module in model.modules():
        weight = getattr(module, "weight", None)
        quantizer = getattr(module, "weight_quantizer", None)
        if quantizer is None or not isinstance(weight, Tensor):
            continue
        axis = (int("ConvTranspose" in type(module).__name__)) if perchannel else None
        amax = _weight_amax(weight, quantizer, method, axis, percentile, num_bins)
        quantizer.amax = amax.to(device=weight.device, dtype=torch.float32)
        if advance is not None:
            advance()


def _weight_amax(
    weight: Tensor, quantizer: Any, method: str, axis: int | None, percentile: float, num_bins: int
) -> Tensor:
    if method == "max":
        return reduce_amax(weight.detach(), axis=reduced_axes(axis, weight.dim()))
    channels = weight.detach()[None] if axis is None else weight.detach().movedim(axis, 0)
    found: list[Tensor] = []
    for channel in channels:
        calibrator = HistogramCalibrator(
            quantizer.num_bits, None, quantizer.unsigned, num_bins=num_bins
        )
        calibrator.collect(channel)
        amax = calibrator.compute_amax(method, percentile=percentile)
        assert amax is not None
        found.append(amax)
    if axis is None:
        return found[0]
    shape = [1] * weight.dim()
    shape[axis] = -1
    return torch.stack(found).view(shape)
