"""Gives channels a like range before they are quantized: SmoothQuant, folded into the quantizer.

A few hidden channels of a BERT are five to ten times wider than the rest, and set the step for
all. Dividing each channel by its own factor before it is quantized, and multiplying the weight's
column by the same, leaves the product as it was and gives all channels a like range.

SmoothQuant folds the factor into the LayerNorm before the linear. BERT normalises after the
residual add, so that LayerNorm feeds the next residual too and cannot change; here the factor
stays at the quantizer, as pytorch-quantization's `pre_quant_scale`, which runtimes fuse with it.

Inputs of residual adds have no weight to multiply. They are divided again after the pair, so that
the factor may make all channels equally wide: the same as a scale for each channel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from qdqbert.spec import Site


class ChannelAmaxObserver:
    """Takes tensors in, keeps the largest magnitude of each channel a site.

    Attributes:
        amax: By site name, shape `(channels,)`. Sites that read one tensor share one object.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.amax: dict[str, Tensor] = {}
        self._wanted = frozenset(wanted)
        self._mask: Tensor | None = None
        self._last: tuple[Tensor, str] | None = None
        self._leader: dict[str, str] = {}

    def start_batch(self, attention_mask: Tensor) -> None:
        """Says which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""
        self._mask = attention_mask.bool()
        self._last = None

    def observe(self, site: Site, x: Tensor) -> None:
        """Widens the channels of a site by a tensor `(batch, seq, channels)`."""
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

    @property
    def groups(self) -> dict[str, list[str]]:
        """Sites that read one tensor, under the first of them."""
        groups: dict[str, list[str]] = {}
        for name in self.amax:
            groups.setdefault(self._leader.get(name, name), []).append(name)
        return groups


def choose_pre_quant_scales(
    channels: ChannelAmaxObserver, weights: Mapping[str, Tensor], *, alpha: float
) -> dict[str, Tensor]:
    """What each input is multiplied by before it is quantized.

    Args:
        channels: After calibration.
        weights: The weight `(out, in)` of each linear, by the name of its input's site. Sites of
            `channels` that have none are divided by the factor after they are quantized.
        alpha: Share of the difficulty that moves to the weights, 0 to 1.

    Returns:
        By site name, shape `(in,)`, float32: `1 / s` with `s = amax_x^alpha / amax_w^(1 - alpha)`,
        normalised to a geometric mean of 1. Equal for linears that read one tensor. Without a
        weight `s = amax_x`, but a hundredth of its mean at least, normalised alike.

    Source: Xiao et al. 2023, arXiv:2211.10438, equation 4.
    """
    scales: dict[str, Tensor] = {}
    for leader, members in channels.groups.items():
        amax_x = channels.amax[leader]
        linears = [name for name in members if name in weights]
        if linears:
            columns = [weights[name].detach().abs().amax(dim=0) for name in linears]
            amax_w = torch.stack(columns).amax(dim=0).clamp_min(1e-5)
            log_s = alpha * amax_x.clamp_min(1e-5).log() - (1 - alpha) * amax_w.log()
            scales.update(dict.fromkeys(linears, _inverse(log_s)))
        if len(linears) < len(members):
            # A channel that hardly moved on these texts may do so on others.
            floor = max(1e-5, float(amax_x.mean()) / 100)
            others = [name for name in members if name not in weights]
            scales.update(dict.fromkeys(others, _inverse(amax_x.clamp_min(floor).log())))
    return scales


def _inverse(log_s: Tensor) -> Tensor:
    """`1 / s`, normalised to a geometric mean of 1."""
    return torch.exp(log_s.mean() - log_s)
