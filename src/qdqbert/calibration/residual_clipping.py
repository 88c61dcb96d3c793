"""Clip the ranges of residual adds by the error of the LayerNorm behind the sum.

A few tokens, mostly [CLS] and [SEP], have one hidden channel that is a hundred times wider than the
rest. If codes cover it, most values of all other channels become 0. Clipping it does no harm: the
residual has the same channel, and LayerNorm scales a vector with one wide channel to the same
length, however wide the channel is. A rule that looks at one tensor cannot see this, so the error
is measured behind the LayerNorm, for each candidate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from qdqbert.calibration.statistics import TokenObserver
from qdqbert.quantization.spec import LOCAL, RESIDUAL, Range, Site

CANDIDATES = torch.tensor([2 ** (exponent / 2) for exponent in range(-8, 17)])
"""Values of `amax` that are tried: 1/16 to 256 in steps of a factor of 1.41.

Finer steps gain nothing, since the error is flat around its minimum.
"""

# Tokens per batch. With these, all candidates together cost as much as the forward pass.
_TOKENS = 128
# Tokens per add. With more, the best candidate does not change any more.
_TOKENS_IN_ALL = 5000


class ResidualErrorObserver(TokenObserver):
    """Measure the error of each candidate at residual adds.

    Attributes:
        errors: Sum of the squared errors of the normalized sums, by the name of the local input's
            site. Shape `(candidates,)`, float64. Errors of two runs can be added.
    """

    def __init__(self, wanted: Collection[str], *, bits: int = 8) -> None:
        """Measure the `wanted` sites. Sites other than local inputs of an add are ignored."""
        self.errors = {
            name: torch.zeros(len(CANDIDATES), dtype=torch.float64)
            for name in wanted
            if name.endswith(LOCAL)
        }
        self._qmax = 2 ** (bits - 1) - 1
        super().__init__()
        self._left = dict.fromkeys(self.errors, _TOKENS_IN_ALL)
        self._waiting: dict[str, tuple[str, Tensor]] = {}
        # Errors of each batch, by which another observer knows how much of them still counts.
        self._batches: list[tuple[str, Tensor, int]] = []

    def start_batch(self, attention_mask: Tensor) -> None:
        """See `Observer`."""
        super().start_batch(attention_mask)
        self._waiting = {}

    def observe(self, site: Site, x: Tensor) -> None:
        """Measure each candidate once both inputs `(batch, seq, hidden)` of an add were seen."""
        side = next((each for each in (LOCAL, RESIDUAL) if site.name.endswith(each)), None)
        if side is None:
            return
        add = site.name.removesuffix(side)
        if self._left.get(add + LOCAL, 0) <= 0:
            return
        other, y = self._waiting.pop(add, (side, x))
        if other == side:
            self._waiting[add] = (side, x)
            return
        local, residual = (x, y) if side == LOCAL else (y, x)
        local, residual = self.tokens(site, local), self.tokens(site, residual)
        step = max(1, math.ceil(len(local) / _TOKENS))
        local, residual = local[::step].float(), residual[::step].float()
        self._add(add + LOCAL, self._errors(local, residual), len(local))

    def absorb_(self, other: ResidualErrorObserver) -> None:
        """See `MergeableObserver`. Batches count until the tokens of this observer are used up."""
        for name, errors, tokens in other._batches:
            if self._left[name] > 0:
                self._add(name, errors, tokens)

    def _add(self, name: str, errors: Tensor, tokens: int) -> None:
        self.errors[name] += errors
        self._left[name] -= tokens
        self._batches.append((name, errors, tokens))

    def _errors(self, local: Tensor, residual: Tensor) -> Tensor:
        wanted = _normalized(local + residual)
        found = []
        for amax in CANDIDATES.tolist():
            scale = amax / self._qmax
            codes = (local / scale).round_().clamp_(-self._qmax - 1, self._qmax)
            made = _normalized(codes.mul_(scale).add_(residual))
            found.append((made - wanted).square().sum(dtype=torch.float64))
        return torch.stack(found).cpu()


def clip_residual_ranges(
    ranges: Mapping[str, Range], errors: Mapping[str, Tensor]
) -> dict[str, Range]:
    """Return the ranges, clipped at measured sites to the candidate with the least error.

    A range inside of the best candidate stays the same.
    """
    clipped = dict(ranges)
    for name, error in errors.items():
        amax = float(CANDIDATES[int(error.argmin())])
        own = ranges[name]
        clipped[name] = Range(
            amax=min(own.amax, amax), low=max(own.low, -amax), high=min(own.high, amax)
        )
    return clipped


def _normalized(sums: Tensor) -> Tensor:
    return functional.layer_norm(sums, sums.shape[-1:])
