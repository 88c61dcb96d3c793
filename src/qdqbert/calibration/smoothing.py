"""SmoothQuant at the quantizer: give channels comparable ranges before they are quantized.

A few hidden channels of a BERT model are five to ten times wider than the rest, and they set the
step for all. Each channel is divided by its own factor before it is quantized, and the weight's
column is multiplied by the same factor. The product stays the same, and channels have comparable
ranges.

SmoothQuant folds the factor into the LayerNorm in front of the linear layer. BERT normalizes after
the residual add, so this LayerNorm feeds the next residual too and cannot change. Here the factor
stays at the quantizer, like pytorch-quantization's `pre_quant_scale`, which runtimes fuse with it.

The formula of SmoothQuant looks at the largest values only. Rounding spreads its errors over all
values, so the factors are moved towards factors that add the least noise (decision 16). They move
only a part of the way: with the best factors for the calibration data, many channels reach the end
of the range, where values of other texts are cut off.

Inputs of residual adds have no weight. They are divided by the factor again after the Q/DQ pair,
so that the factor can make all channels equally wide, like a scale per channel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from qdqbert.calibration.statistics import TokenObserver
from qdqbert.quantization.numerics.channel_scales import ChannelStatistics, least_noise_scale
from qdqbert.quantization.numerics.threads import map_on_threads
from qdqbert.quantization.spec import Site


class ChannelObserver(TokenObserver):
    """Keep the range of each channel per site, and the sums for its variance.

    Attributes:
        ends: By site name, `(2, channels)`: the largest value of each channel, and the largest of
            the negated values. Two runs combine by their maximum.
        totals: By site name, float64 `(2, channels + 1)`: sums of each channel and of its squares,
            and the number of tokens as the last column of both. The totals of two runs can be
            added.

    Sites that read the same tensor share one object.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.ends: dict[str, Tensor] = {}
        self.totals: dict[str, Tensor] = {}
        super().__init__()
        self._wanted = frozenset(wanted)
        self._leader: dict[str, str] = {}

    def observe(self, site: Site, x: Tensor) -> None:
        """Include a tensor `(batch, seq, channels)`."""
        if site.name not in self._wanted:
            return
        if self._last is not None and self._last[0] is x:
            self._join([site.name], self._last[1])
            return
        tokens = self.tokens(site, x).float()
        low, high = torch.aminmax(tokens, dim=0)
        sums = [each.sum(dim=0, dtype=torch.float64) for each in (tokens, tokens.square())]
        totals = functional.pad(torch.stack(sums), (0, 1), value=len(tokens))
        self._include(site.name, torch.stack([high, -low]), totals)
        self._last = (x, site.name)

    def absorb_(self, other: ChannelObserver) -> None:
        """See `MergeableObserver`."""
        for leader, members in other.groups.items():
            self._include(leader, other.ends[leader], other.totals[leader])
            self._join(members, leader)

    def add_unseen_(self, name: str, leader: str, channels: int, device: torch.device) -> None:
        """Add a site that reads the tensor of `leader`, unless it was seen."""
        if name in self.ends:
            return
        if leader not in self.ends:
            self.ends[leader] = torch.full((2, channels), -torch.inf, device=device)
            self.totals[leader] = torch.zeros(2, channels + 1, dtype=torch.float64, device=device)
        self._join([name], leader)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Sites that read the same tensor, by the first of them."""
        groups: dict[str, list[str]] = {}
        for name in self.ends:
            groups.setdefault(self._leader.get(name, name), []).append(name)
        return groups

    def statistics(self, name: str) -> ChannelStatistics:
        """Return the statistics of the channels that a site reads."""
        high, negated = self.ends[name].float()
        means, squares = self.totals[name][:, :-1] / self.totals[name][:, -1:]
        variance = (squares - means.square()).clamp_min(0).to(torch.float32)
        return ChannelStatistics(low=-negated, high=high, variance=variance)

    def _include(self, leader: str, ends: Tensor, totals: Tensor) -> None:
        if leader not in self.ends:
            self.ends[leader], self.totals[leader] = ends.clone(), totals.clone()
            return
        torch.maximum(self.ends[leader], ends, out=self.ends[leader])
        self.totals[leader] += totals

    def _join(self, members: Collection[str], leader: str) -> None:
        for name in members:
            self._leader[name] = leader
            self.ends[name], self.totals[name] = self.ends[leader], self.totals[leader]


def choose_pre_quant_scales(
    channels: ChannelObserver,
    weights: Mapping[str, Tensor],
    *,
    alphas: Mapping[str, float],
    search: float = 0.0,
) -> dict[str, Tensor]:
    """Choose the factor of each input before it is quantized.

    Args:
        channels: An observer that has seen all batches.
        weights: Weight `(out, in)` of each linear layer, by the name of its input's site. Sites of
            `channels` without a weight are divided by the factor after they are quantized.
        alphas: Share of the difficulty that moves to the weights, 0 to 1, by the name of the
            input's site. Linear layers that read the same tensor use the first one's alpha.
        search: How far the factors of inputs of linear layers move, 0 to 1, from the formula to the
            factors of `least_noise_scale`, in logarithms.

    Returns:
        The factors by site name, shape `(in,)`, float32: `1 / s` with
        `s = amax_x^alpha / amax_w^(1 - alpha)`, normalized to a geometric mean of 1, and then moved
        by `search`. Linear layers that read the same tensor have the same factors. Without a weight
        `s = amax_x`, but at least a hundredth of its mean, normalized in the same way.

    Source: Xiao et al. 2023, arXiv:2211.10438, equation 4.
    """

    def choose(leader: str) -> dict[str, Tensor]:
        members = groups[leader]
        statistics = channels.statistics(leader)
        amax_x = statistics.amax
        weighted = [name for name in members if name in weights]
        scales: dict[str, Tensor] = {}
        if weighted:
            weight = torch.cat([weights[name].detach() for name in weighted])
            amax_w = weight.abs().amax(dim=0).clamp_min(1e-5)
            alpha = alphas[weighted[0]]
            scale = _inverse(alpha * amax_x.clamp_min(1e-5).log() - (1 - alpha) * amax_w.log())
            if search > 0:
                best = least_noise_scale(scale, statistics, weight).to(scale.device)
                scale = torch.lerp(scale.log(), best.log(), search).exp()
            scales.update(dict.fromkeys(weighted, scale))
        if len(weighted) < len(members):
            # A channel with small values on these texts may have larger ones on other texts.
            floor = max(1e-5, float(amax_x.mean()) / 100)
            others = [name for name in members if name not in weights]
            scales.update(dict.fromkeys(others, _inverse(amax_x.clamp_min(floor).log())))
        return scales

    groups = channels.groups
    return {
        name: scale for found in map_on_threads(choose, groups) for name, scale in found.items()
    }


def _inverse(log_s: Tensor) -> Tensor:
    """Return `1 / s`, normalized to a geometric mean of 1."""
    return torch.exp(log_s.mean() - log_s)
