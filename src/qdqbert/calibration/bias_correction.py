"""Correct biases: rounding the weight of a linear layer shifts the mean of its output.

Rounding errors of a weight do not average out: inputs of linear layers have channels whose mean is
far from zero, such as those behind a GELU. The shift is the same for all tokens, so a bias can take
it back. This costs nothing at run time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from qdqbert.calibration.statistics import TokenObserver
from qdqbert.quantization.spec import Site


class MeanObserver(TokenObserver):
    """Sum up the channels of each site over all tokens.

    Attributes:
        totals: By site name, float64 `(channels + 1,)`: the sum of each channel, and the number of
            tokens. The totals of two runs can be added.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.totals: dict[str, Tensor] = {}
        super().__init__()
        self._wanted = frozenset(wanted)

    def observe(self, site: Site, x: Tensor) -> None:
        """Add a tensor `(batch, seq, channels)`."""
        if site.name not in self._wanted:
            return
        if self._last is None or self._last[0] is not x:
            tokens = self.tokens(site, x)
            sums = tokens.sum(dim=0, dtype=torch.float64)
            self._last = x, torch.cat([sums, sums.new_tensor([len(tokens)])]).cpu()
        self._add(site.name, self._last[1])

    def absorb_(self, other: MeanObserver) -> None:
        """See `MergeableObserver`."""
        for name, total in other.totals.items():
            self._add(name, total)

    def means(self, scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean of each channel of the tensor itself, `(channels,)`, float32."""
        found = {}
        for name, total in self.totals.items():
            mean = total[:-1] / total[-1]
            scale = scales.get(name)
            found[name] = (mean if scale is None else mean / scale).to(torch.float32)
        return found

    def _add(self, name: str, total: Tensor) -> None:
        before = self.totals.get(name)
        self.totals[name] = total if before is None else before + total
