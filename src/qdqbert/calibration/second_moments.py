"""Sum up the second moments of the inputs of linear layers, by which weights are rounded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qdqbert.calibration.statistics import TokenObserver
from qdqbert.quantization.numerics.affine import parameters_of, quantize
from qdqbert.quantization.recipes import AFFINE
from qdqbert.quantization.spec import Range, Site

# Tokens per text, evenly spaced in longer ones. 300 texts then have six tokens for each channel of
# BERT-base's widest input, and the sums cost less than the forward pass.
_TOKENS = 64
# Whole numbers below these are exact in float32 and fit in int32.
_FLOAT32_LIMIT = 2**24
_INT32_LIMIT = 2**31
# Rows of a product that are computed at a time, from the diagonal on: the rest is its mirror image.
_ROWS = 512


class SecondMomentObserver(TokenObserver):
    """Sum up the products of all pairs of channels, over the tokens of all texts.

    Tensors are rounded to 8-bit codes first, as a quantized model reads them. Sums of products of
    codes are whole numbers and exact, so they do not depend on how the data is divided.
    """

    def __init__(self, ranges: Mapping[str, Range]) -> None:
        """Observe the sites in `ranges`."""
        self._parameters = {name: parameters_of(each, AFFINE) for name, each in ranges.items()}
        self._totals: dict[str, _Products] = {}
        super().__init__()
        self._leader: dict[str, str] = {}

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
        tokens = self.tokens(site, x, step=-(-x.shape[1] // _TOKENS))
        parameters = self._parameters[site.name]
        codes = quantize(tokens.float(), parameters, AFFINE)
        if site.name not in self._totals:
            self._totals[site.name] = _Products(x.shape[-1], device=x.device)
        # Around the code of 0, products are small.
        self._totals[site.name].add_(codes.sub_(parameters.zero_point))

    def absorb_(self, other: SecondMomentObserver) -> None:
        """See `MergeableObserver`."""
        for name, theirs in other._totals.items():
            if name in self._totals:
                self._totals[name].absorb_(theirs)
            else:
                self._totals[name] = theirs
        self._leader.update(other._leader)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Sites that read the same tensor, by the first of them."""
        groups: dict[str, list[str]] = {}
        for name, leader in self._leader.items():
            groups.setdefault(leader, []).append(name)
        return groups

    def take_totals(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the sums over tokens of codes from -128 to 127, and forget them.

        Returns:
            The sums of all products, `(channels, channels)`, and the sums of the codes with the
            number of tokens behind them, `(channels + 1,)`. Both are float64, on the CPU, and can
            be added to the sums of another run.
        """
        shift = float(self._parameters[name].zero_point) - 128
        return self._totals.pop(name).totals(shift)


def moments_of(products: Tensor, sums: Tensor) -> Tensor:
    """Return second moments around the mean, in the memory of `products`, `(in, in)`."""
    means = sums[:-1] / sums[-1]
    return products.div_(sums[-1]).sub_(torch.outer(means, means))


class _Products:
    """Exact sums of the products of whole numbers, for all pairs of channels.

    A sum of products is at most the larger one of the two sums of squares. While these are exact
    in float32, so is everything else.
    """

    def __init__(self, channels: int, *, device: torch.device) -> None:
        self._sums = torch.zeros(channels + 1, dtype=torch.float64, device=device)
        # Only the blocks of `_ROWS` from the diagonal on are valid.
        self._recent = torch.zeros(channels, channels, device=device)
        self._earlier: Tensor | None = None

    def add_(self, codes: Tensor) -> None:
        """Add whole numbers, float32 `(tokens, channels)`."""
        squares = codes.square().sum(dim=0)
        if float(squares.amax()) >= _FLOAT32_LIMIT:
            for half in torch.tensor_split(codes, 2):
                self.add_(half)
            return
        self._settle_for(squares)
        self._sums[:-1] += codes.sum(dim=0)
        self._sums[-1] += len(codes)
        for start in range(0, codes.shape[1], _ROWS):
            rows = slice(start, start + _ROWS)
            self._recent[rows, start:].addmm_(codes[:, rows].T, codes[:, start:])

    def absorb_(self, other: _Products) -> None:
        """Add the sums of another object."""
        self._sums += other._sums
        if other._earlier is not None:
            self._add_earlier(other._earlier)
        self._settle_for(other._recent.diagonal())
        self._recent += other._recent

    def totals(self, shift: float) -> tuple[Tensor, Tensor]:
        """Return the sums for numbers that are all shifted by a whole number."""
        sums, count = self._sums.cpu(), float(self._sums[-1])
        products = self._recent.to("cpu", torch.float64)
        if self._earlier is not None:
            products += self._earlier.cpu()
        for start in range(0, len(products), _ROWS):
            rows = slice(start, start + _ROWS)
            products[start + _ROWS :, rows] = products[rows, start + _ROWS :].T
        # sum (a + s) (b + s) = sum a b + s sum a + s sum b + n s^2
        added = shift * sums[:-1]
        products += (added + count * shift**2)[:, None]
        products += added
        sums[:-1] += count * shift
        return products, sums

    def _settle_for(self, squares: Tensor) -> None:
        """Make room for the next products, given the sums of their squares, `(channels,)`."""
        if float((self._recent.diagonal() + squares).amax()) >= _FLOAT32_LIMIT:
            self._add_earlier(self._recent)
            self._recent = torch.zeros_like(self._recent)

    def _add_earlier(self, more: Tensor) -> None:
        largest = more.diagonal().double()
        if self._earlier is not None:
            largest = largest + self._earlier.diagonal()
        # Twice the memory, for thousands of texts only.
        fits = float(largest.amax()) < _INT32_LIMIT
        more = more.to(torch.int32 if fits else torch.int64)
        self._earlier = more if self._earlier is None else self._earlier.to(more).add_(more)
