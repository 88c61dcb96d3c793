"""Hadamard matrices that spread the channels of a linear layer's input before it is rounded.

A linear layer computes `x @ W.T = (x @ H) @ (W @ H / order).T` for a symmetric matrix H of ones and
minus ones with `H @ H = order * I`. Few channels of a transformer have much larger values than the
others, and set the step of all codes. In `x @ H` they are spread over a group of channels, so that
the range of a token is smaller. So are the ranges of the rows of weights.

Sources: QuaRot (Ashkboos et al. 2024, arXiv:2404.00456), for 4-bit language models; Sylvester's
construction of the matrices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Array = TypeVar("Array", bound=Any)
"""An array of numpy or a tensor of torch."""

# Channels of a group, and of one of products with a gate, whose outliers are larger.
_GROUP, _GATE_GROUP = 64, 128
_MOST_MEMBERS = 8
# Vectors of kernels have up to 16 lanes.
_LANES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hadamard:
    """A block-diagonal Hadamard matrix: groups of channels are multiplied by one of order `order`.

    With `n` channels, the members of a group are `block` channels next to each other, and those
    that are `n / members` after them, and so on. Kernels add whole vectors for the members, and
    lanes of a vector for the channels of a block.

    Attributes:
        members: Number of blocks in a group, a power of 2.
        block: Channels of a block, a power of 2.
    """

    members: int = 1
    block: int = 1

    @property
    def order(self) -> int:
        """Channels of a group."""
        return self.members * self.block

    def spread(self, x: Array) -> Array:
        """Return `x @ H` along the last axis, in the dtype of `x`.

        Sums are made in the order of the kernels: between lanes first, then between members.
        """
        if isinstance(x, np.ndarray):
            return cast(Array, self._spread_array(x))
        import torch

        shape = x.shape
        for step in self._steps(shape[-1]):
            pairs = x.reshape(*shape[:-1], -1, 2, step)
            first, second = pairs[..., 0, :], pairs[..., 1, :]
            made: Any = torch.stack([first + second, first - second], dim=-2)
            x = made.reshape(shape)
        return x

    def _spread_array(self, x: NDArray[Any]) -> NDArray[Any]:
        # Channels first, so that numpy adds long rows, which takes a third of the time.
        made = np.array(x.reshape(-1, x.shape[-1]).T, order="C")
        for step in self._steps(len(made)):
            pairs = made.reshape(-1, 2, step, made.shape[1])
            first, second = pairs[:, 0], pairs[:, 1]
            difference = first - second
            first += second
            second[...] = difference
        return np.ascontiguousarray(made.T).reshape(x.shape)

    def _steps(self, channels: int) -> Iterator[int]:
        """Yield how far apart the channels are that are added, in the order of the sums."""
        for size, width in ((self.block, self.block), (self.members, channels)):
            step = width // size
            while step < width:
                yield step
                step *= 2

    def spread_weight(self, weight: Array) -> Array:
        """Return `weight @ H / order`, whose product with `x @ H` is that of weight and `x`."""
        # A power of 2, so that nothing is rounded.
        return cast(Array, self.spread(weight) / self.order)

    def __str__(self) -> str:
        return f"{self.members} x {self.block}"


def hadamard_of(channels: int, *, gated: bool = False) -> Hadamard:
    """Return the matrix for a number of channels, with groups of 64 where the number has them.

    Channels that are products with a gate have groups of 128. Members lie a multiple of 16 channels
    apart, so that kernels add whole vectors.
    """
    members = block = 1
    group = _GATE_GROUP if gated else _GROUP
    while members < _MOST_MEMBERS and channels % (2 * members * _LANES) == 0:
        members *= 2
    while block < _LANES and members * block < group and channels // members % (2 * block) == 0:
        block *= 2
    return Hadamard(members=members, block=block)
