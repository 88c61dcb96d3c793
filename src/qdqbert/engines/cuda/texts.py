"""Texts without padding, and how programs get them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.cuda.tiles import QUERIES
from qdqbert.engines.native.memory import padded

CAPACITIES = (16, 64, 256, 1024, 2048, 4096, 8192)
"""Tokens that programs are made for. Tiles without tokens take no time, so few are enough."""

# Texts have on average this number of tokens or more, or a chunk of texts ends before it is full.
_FEW_TOKENS = 16
# Texts that fit with any number of tokens.
_FEW_TEXTS = 4
# Room for the number of tokens, up to a multiple of 16 bytes, and the numbers of a token or block.
_NUMBERS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts without padding.

    Attributes:
        tokens: `(4, tokens)` int32, for each token its id, its position, its type, and the bits of
            the float32 factor of its row of words.
        starts: `(texts + 1,)` int32, index of the first token of each text, and of the end.
        attended: `(texts,)` int32, how many tokens at the start of each text are attended to.
    """

    tokens: NDArray[np.int32]
    starts: NDArray[np.int32]
    attended: NDArray[np.int32]

    @functools.cached_property
    def blocks(self) -> NDArray[np.int32]:
        """The blocks of queries as `kernels.attention` reads them, `(blocks, 4)`."""
        counts = self._block_counts
        texts = np.repeat(np.arange(len(counts)), counts)
        firsts = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts, ends = self.starts[:-1], self.starts[1:]
        columns = (starts[texts], ends[texts], (starts + self.attended)[texts])
        return np.stack([*columns, firsts * QUERIES], axis=1).astype(np.int32)

    @property
    def _block_counts(self) -> NDArray[np.int64]:
        return -(-np.diff(self.starts) // QUERIES)

    @property
    def capacity(self) -> int:
        """Tokens of the smallest program for the texts; a long text has one of its own."""
        count, blocks = int(self.starts[-1]), len(self.blocks)
        fits = (each for each in CAPACITIES if count <= each and blocks <= blocks_in(each))
        return next(fits, padded(count, 16))

    def part(self, first: int, most: int) -> Texts:
        """Return texts from the first one on that fit into a program of up to some tokens.

        A text of more tokens is a part of its own.
        """
        starts, blocks = self.starts, np.append(0, self._block_counts.cumsum())
        end = min(
            np.searchsorted(starts, starts[first] + most, side="right"),
            np.searchsorted(blocks, blocks[first] + blocks_in(most), side="right"),
        )
        end = max(int(end) - 1, first + 1)
        return Texts(
            tokens=self.tokens[:, starts[first] : starts[end]],
            starts=starts[first : end + 1] - starts[first],
            attended=self.attended[first:end],
        )

    def write(self, numbers: NDArray[np.int32]) -> None:
        """Write them into zeros, the numbers of a program with their capacity."""
        count, tokens, blocks, starts = parts_of(numbers, self.capacity)
        count[0] = self.starts[-1]
        tokens[:, : self.starts[-1]] = self.tokens
        blocks[: len(self.blocks)] = self.blocks
        starts[: len(self.starts)] = self.starts


def size_of(capacity: int) -> int:
    """Return how many numbers a program for some tokens takes."""
    return _NUMBERS * (1 + capacity + blocks_in(capacity)) + blocks_in(capacity) + 1


def parts_of(numbers: Any, capacity: int) -> tuple[Any, Any, Any, Any]:
    """Return the parts of the numbers of a program, which are copied to the device together.

    They are an int32 array or tensor: how many tokens there are, `(4,)`; the tokens, `(4,
    capacity)`, the blocks and the starts, as in `Texts`. There are zeros for a token or a block
    that is not there, which reads a row that is.
    """
    first = _NUMBERS * (1 + capacity)
    second = first + _NUMBERS * blocks_in(capacity)
    tokens = numbers[_NUMBERS:first].reshape(_NUMBERS, capacity)
    blocks = numbers[first:second].reshape(-1, _NUMBERS)
    return numbers[:_NUMBERS], tokens, blocks, numbers[second:]


def blocks_in(capacity: int) -> int:
    """Return the number of blocks of queries, and of texts, that fit with a number of tokens."""
    return capacity // _FEW_TOKENS + _FEW_TEXTS
