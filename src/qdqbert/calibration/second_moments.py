"""Sum up the second moments of the inputs of linear layers, by which weights are rounded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from qdqbert.numerics.affine import parameters_of, quantize
from qdqbert.recipes import AFFINE
from qdqbert.spec import Range, Site

# Tokens per text, evenly spaced in longer ones. 300 texts then have six tokens for each channel of
# BERT-base's widest input, and the sums cost less than the forward pass.
_TOKENS = 64
# Codes are at most 128. Sums over so many tokens are exact in float32 and fit in int32.
_FLOAT32_TOKENS = 2**24 // 128**2
_INT32_TOKENS = 2**31 // 128**2 - 1


class SecondMomentObserver:
    """Sum up the products of all pairs of channels, over the tokens of all texts.

    Tensors are rounded to 8-bit codes first, as a quantized model reads them. Sums of products of
    codes are whole numbers and exact, so they do not depend on how the data is divided.

    Attributes:
        totals: Sum over tokens of the products of the codes and a constant 1, by the name of the
            first site that reads a tensor. `(channels + 1, channels + 1)`, int32, or int64 where
            there are many tokens; the last row has the sums of the codes and the number of tokens.
            Those of two runs can be added.
    """

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        """Observe the sites that `ranges` has the range of."""
        self.totals: dict[str, Tensor] = {}
        self._parameters = {name: parameters_of(each, AFFINE) for name, each in ranges.items()}
        self._leader: dict[str, str] = {}
        self._mask: Tensor | None = None
        self._last: tuple[Tensor, str] | None = None

    def start_batch(self, attention_mask: Tensor) -> None:
        """Set which positions of the next tensors are text. Shape `(batch, seq)`, 0 is [PAD]."""
        self._mask = attention_mask.bool()
        self._last = None

    def observe(self, site: Site, x: Tensor) -> None:
        """Add a tensor `(batch, seq, channels)`."""
        if site.name not in self._parameters:
            return
        # Query, key and value read one tensor, which counts once.
        if self._last is not None and self._last[0] is x:
            self._leader[site.name] = self._last[1]
            return
        self._last = x, site.name
        self._leader[site.name] = site.name
        assert self._mask is not None
        step = -(-x.shape[1] // _TOKENS)
        some = x[:, ::step]
        # Cross-attention reads another text, whose mask is not known.
        tokens = some[self._mask[:, ::step]] if site.sequence_axes else some.flatten(0, -2)
        codes = quantize(tokens.float(), self._parameters[site.name], AFFINE) - 128
        codes = functional.pad(codes, (0, 1), value=1.0)
        for part in torch.split(codes, _FLOAT32_TOKENS):
            self._add(site.name, (part.T @ part).to("cpu", torch.int32))

    def absorb_(self, other: SecondMomentObserver) -> None:
        """See `MergeableObserver`."""
        for name, total in other.totals.items():
            self._add(name, total.clone())
        self._leader.update(other._leader)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Sites that read the same tensor, by the first of them."""
        groups: dict[str, list[str]] = {}
        for name, leader in self._leader.items():
            groups.setdefault(leader, []).append(name)
        return groups

    def take_moments(self, name: str) -> Tensor:
        """Return second moments around the mean, up to a factor, and forget the totals.

        Args:
            name: The first site that reads a tensor.

        Returns:
            `(channels, channels)`, float64.
        """
        total = self.totals.pop(name).double()
        means = total[-1, :-1] / total[-1, -1]
        return total[:-1, :-1] / total[-1, -1] - torch.outer(means, means)

    def _add(self, name: str, total: Tensor) -> None:
        before = self.totals.get(name)
        if before is not None:
            tokens = int(before[-1, -1]) + int(total[-1, -1])
            # Twice the memory, for thousands of texts only.
            before = before if tokens <= _INT32_TOKENS else before.long()
            total = before.add_(total)
        self.totals[name] = total
