"""Write vectors of float32 as lists in JSON, many at once.

A number has eight digits, or nine where eight are another float32, and no zeros at its end. Python
writes a float32 as the float64 that it is, with 17 digits, which takes nine times as long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Sizes of numbers that are written here, besides 0: one digit before the point, and at most 15
# after it. Other numbers are rare, and are written one at a time.
_SMALLEST, _LARGEST = np.float32(1e-7), np.float32(10)
_DECIMALS = 15

# Numbers that are written together, so that they stay in the caches of the CPU.
_BLOCK = 1 << 14

# By the number of powers of ten, from 1e-7 to 1, that are at most the size of a number, which is 0
# for the number 0: what makes an integer of eight digits of it, what makes one of all decimals of
# an integer of nine, and the decimals that nine digits have.
_POWERS = np.array([10.0**power for power in range(-7, 1)], np.float32)
_TO_EIGHT = np.array([1.0, *(10.0 ** (7 - power) for power in range(-7, 1))])
_TO_ALL = np.array([0, *(10 ** (power + 7) for power in range(-7, 1))])
_OF_NINE = np.array([2, *(8 - power for power in range(-7, 1))])

# A text is put together from words of four characters: one of the first two, which overlaps with
# the next by its last character, then the point with three digits, then four digits each.
_POSITIVE = [f", {digit}." for digit in range(10)]
_NEGATIVE = [f", -{digit}" for digit in range(10)]
_WORD = np.uint32
_FIRST = np.array(_POSITIVE + _NEGATIVE, "S4").view(_WORD)
_THREE = np.array([f".{number:03d}" for number in range(1000)], "S4").view(_WORD)
_FOUR = np.array([f"{number:04d}" for number in range(10_000)], "S4").view(_WORD)
# Characters of the longest text.
_MOST = 4 + 1 + _DECIMALS


def json_lists(vectors: Sequence[NDArray[np.float32]]) -> list[str]:
    """Return vectors `(numbers,)` as lists in JSON, in which NaN and infinity are null."""
    ends = np.cumsum([0, *map(len, vectors)])
    values = np.concatenate([np.zeros(0, np.float32), *vectors])
    sizes = np.abs(values)
    odd = np.flatnonzero(~((sizes == 0) | ((sizes >= _SMALLEST) & (sizes < _LARGEST))))
    others = [_number(each) for each in values[odd].tolist()]
    values[odd] = 0
    # A word that is written after another one covers what is left of it.
    buffer = np.empty(len(values) * _MOST + 4, np.uint8)
    words = np.ndarray(buffer=buffer.data, shape=(len(buffer) - 3,), dtype=_WORD, strides=(1,))
    stops = np.zeros(len(values) + 1, np.int64)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        stops[start + 1 : start + 1 + len(block)] = _write(block, words, stops[start])
    text = buffer[: stops[-1]].tobytes().decode("ascii")
    # Each number has a comma and a space before it.
    starts, edges = stops[odd] + 2, stops[ends]
    if others:
        left = [0, *stops[odd + 1].tolist()]
        kept = [text[first:last] for first, last in zip(left, starts.tolist(), strict=False)]
        text = "".join([*itertools.chain(*zip(kept, others, strict=True)), text[left[-1] :]])
        longer = np.array([*map(len, others)]) - (stops[odd + 1] - starts)
        edges += np.cumsum([0, *longer])[np.searchsorted(odd, ends)]
    return [f"[{text[first + 2 : last]}]" for first, last in itertools.pairwise(edges.tolist())]


def json_texts(values: Sequence[Any]) -> list[str] | None:
    """Return arrays of float32 with one or two dimensions in JSON; `None` for other values."""
    kinds = {(each.ndim, each.dtype) for each in values if isinstance(each, np.ndarray)}
    if len(kinds) != 1 or not all(isinstance(each, np.ndarray) for each in values):
        return None
    ((dimensions, dtype),) = kinds
    if dtype != np.float32 or dimensions not in (1, 2):
        return None
    if dimensions == 1:
        return json_lists(values)
    rows = iter(json_lists([row for each in values for row in each]))
    return [f"[{', '.join(next(rows) for _ in each)}]" for each in values]


def _write(values: NDArray[np.float32], words: NDArray[np.uint32], start: int) -> NDArray[np.int64]:
    """Write numbers one after another, and return where each one ends.

    `words` has a word for each character of the text, and `start` is the first character.
    """
    sizes = np.abs(values)
    power = np.zeros(len(values), np.uint8)
    for each in _POWERS:
        power += sizes >= each
    scale = _TO_EIGHT.take(power)
    scaled = sizes * scale
    eight = np.rint(scaled)
    is_short = (eight / scale).astype(np.float32) == sizes
    decimals = _OF_NINE.take(power)
    decimals -= is_short
    tens = np.floor(eight * 0.1)
    left = np.flatnonzero(is_short & (tens * 10 == eight))
    while len(left):
        left = left[decimals[left] > 1]
        decimals[left] -= 1
        rest = tens[left]
        tens[left] = np.floor(rest * 0.1)
        left = left[tens[left] * 10 == rest]
    digits = np.where(is_short, eight * 10, np.rint(scaled * 10)).astype(np.int64)
    digits *= _TO_ALL.take(power)
    is_negative = np.signbit(values)
    length = decimals + is_negative
    length += 4
    ends = np.cumsum(length)
    ends += start
    first = ends - length
    # Backwards, as the words of a number reach into the next one.
    place = first + is_negative
    place += 3 + 1 + _DECIMALS - 4
    for _ in range(3):
        above = digits // 10_000
        words[place] = _FOUR.take(digits - above * 10_000)
        place -= 4
        digits = above
    above = digits // 1000
    words[place] = _THREE.take(digits - above * 1000)
    words[first] = _FIRST.take(above + 10 * is_negative)
    return ends


def _number(value: float) -> str:
    """Return one number of float32 as JSON has it."""
    if not math.isfinite(value):
        return "null"
    text = f"{value:.9g}"
    return text if "." in text or "e" in text else f"{text}.0"
