"""Lengths of texts, in tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_BINS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextLengths:
    """The distribution of the lengths of texts, after truncation.

    Attributes:
        texts: Number of texts.
        shortest: Length of the shortest text, in tokens.
        median: Median length, in tokens.
        longest: Length of the longest text, in tokens.
        truncated: Number of texts that were longer than the model allows, and lost their end.
        edges: Ends of the bins of a histogram, in tokens. A bin holds lengths from its first end
            up to, but without, the next one.
        counts: Number of texts in each bin; one fewer than `edges`.
    """

    texts: int
    shortest: int
    median: float
    longest: int
    truncated: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]


def text_lengths(lengths: Sequence[int], *, truncated: int) -> TextLengths:
    """Return the distribution of some lengths."""
    shortest, longest = min(lengths), max(lengths)
    # Whole numbers of tokens, so that all bins hold equally many lengths.
    width = -(-(longest + 1 - shortest) // _BINS)
    bins = -(-(longest + 1 - shortest) // width)
    edges = [shortest + width * index for index in range(bins + 1)]
    counts = np.bincount((np.asarray(lengths) - shortest) // width, minlength=bins)
    return TextLengths(
        texts=len(lengths),
        shortest=shortest,
        median=float(np.median(lengths)),
        longest=longest,
        truncated=truncated,
        edges=tuple(edges),
        counts=tuple(counts.tolist()),
    )
