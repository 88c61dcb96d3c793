"""Texts as kernels read them."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
"""Rows of channels, with padding of them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
    """What the layers know of tokens that several texts begin with.

    Attributes:
        tokens: Number of tokens.
        states: Their keys and values in each layer and head, `(layers, 2, heads, tokens,
            head_size)` float32.
    """

    tokens: int
    states: NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts packed one after another, without padding.

    Attributes:
        numbers: Three rows of int32, which start with a number for each token: its id, its place in
            the text, and its type.
        word_factors: `(tokens,)` float32, factors of the rows of words; empty if there are none.
        starts: `(texts + 1,)` int64, index of the first token of each text, and of the end.
        attended: `(texts,)` int64, how many tokens at the start of each text are attended to.
        prefix: Tokens before those of each text; `None` for none.
        saved: Receives the states of the only text, as `Prefix` has them; `None` for nothing.
    """

    numbers: NDArray[np.int32]
    word_factors: NDArray[np.float32]
    starts: NDArray[np.int64]
    attended: NDArray[np.int64]
    prefix: Prefix | None = None
    saved: NDArray[np.float32] | None = None
