"""SmoothQuant at the quantizer: give channels comparable ranges before they are quantized.

A few hidden channels of a BERT model are five to ten times wider than the rest, and they set the
step for all. Each channel is divided by its own factor before it is quantized, and the weight's
column is multiplied by the same factor. The product stays the same, and channels have comparable
ranges.

SmoothQuant folds the factor into the LayerNorm in front of the linear layer. BERT normalizes after
the residual add, so this LayerNorm feeds the next residual too and cannot change. Here the factor
stays at the quantizer, like pytorch-quantization's `pre_quant_scale`, which runtimes fuse with it.

Inputs of residual adds have no weight. They are divided by the factor again after the Q/DQ pair,
so that the factor can make all channels equally wide, like a scale per channel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from qdqbert.spec import Site


class ChannelAmaxObserver:
    """Keep the largest magnitude of each channel per site.

    Attributes:
        amax: By site name, shape `(channels,)`. Sites that read the same tensor share one object.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.amax: dict[str, Tensor] = {}
        self._wanted = frozenset(wanted)
        self._mask: Tensor | None = None
        self._last: tuple[Tensor, str] | None = None
        self._leader: dict[str, str] = {}

    def start_batch(self, attention_mask: Tensor) -> None:
        """Set which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""
        self._mask = attention_mask.bool()
        self._last = None

    def observe(self, site: Site, x: Tensor) -> None:
        """Include a tensor `(batch, seq, channels)`."""
        if site.name not in self._wanted:
            return
        if self._last is not None and self._last[0] is x:
            self._leader[site.name] = self._last[1]
            self.amax[site.name] = self.amax[self._last[1]]
            return
        assert self._mask is not None
        seen = x[self._mask].abs().amax(dim=0)
        before = self.amax.setdefault(site.name, seen)
        torch.maximum(before, seen, out=before)
        self._last = (x, site.name)

    def absorb_(self, other: ChannelAmaxObserver) -> None:
        """See `MergeableObserver`."""
        for leader, members in other.groups.items():
            seen = other.amax[leader]
            before = self.amax.setdefault(leader, seen)
            torch.maximum(before, seen, out=before)
            self.amax.update(dict.fromkeys(members, before))
        self._leader.update(other._leader)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Sites that read the same tensor, by the first of them."""
        groups: dict[str, list[str]] = {}
        for name in self.amax:
            groups.setdefault(self._leader.get(name, name), []).append(name)
        return groups


def choose_pre_quant_scales(
    channels: ChannelAmaxObserver, weights: Mapping[str, Tensor], *, alphas: Mapping[str, float]
) -> dict[str, Tensor]:
    """Choose the factor of each input before it is quantized.

    Args:
        channels: An observer that has seen all batches.
        weights: Weight `(out, in)` of each linear layer, by the name of its input's site. Sites of
            `channels` without a weight are divided by the factor after they are quantized.
        alphas: Share of the difficulty that moves to the weights, 0 to 1, by the name of the
            input's site. Linear layers that read the same tensor use that of the first one.

    Returns:
        The factors by site name, shape `(in,)`, float32: `1 / s` with
        `s = amax_x^alpha / amax_w^(1 - alpha)`, normalized to a geometric mean of 1. Linear layers
        that read the same tensor have the same factors. Without a weight `s = amax_x`, but at
        least a hundredth of its mean, normalized in the same way.

    Source: Xiao et al. 2023, arXiv:2211.10438, equation 4.
    """
    scales: dict[str, Tensor] = {}
    for leader, members in channels.groups.items():
        amax_x = channels.amax[leader]
        weighted = [name for name in members if name in weights]
        if weighted:
            columns = [weights[name].detach().abs().amax(dim=0) for name in weighted]
            amax_w = torch.stack(columns).amax(dim=0).clamp_min(1e-5)
            alpha = alphas[weighted[0]]
            log_s = alpha * amax_x.clamp_min(1e-5).log() - (1 - alpha) * amax_w.log()
            scales.update(dict.fromkeys(weighted, _inverse(log_s)))
        if len(weighted) < len(members):
            # A channel with small values on these texts may have larger ones on other texts.
            floor = max(1e-5, float(amax_x.mean()) / 100)
            others = [name for name in members if name not in weights]
            scales.update(dict.fromkeys(others, _inverse(amax_x.clamp_min(floor).log())))
    return scales


def _inverse(log_s: Tensor) -> Tensor:
    """Return `1 / s`, normalized to a geometric mean of 1."""
    return torch.exp(log_s.mean() - log_s)
