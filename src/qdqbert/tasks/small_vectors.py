"""Embeddings in fewer bytes: a byte or a bit for each dimension.

The codes equal `quantize_embeddings` of sentence-transformers with the same ranges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.choices import OutputDtype
from qdqbert.common.errors import UserInputError

Vectors = NDArray[np.float32]

# Largest difference from 1 of the length of a vector that the graph normalized, in bfloat16 too.
LENGTH_TOLERANCE = 0.01

# Type of the values of each kind of vector. Bits are packed, eight to a byte.
DTYPES: Mapping[OutputDtype, str] = {
    "float32": "float32",
    "int8": "int8",
    "uint8": "uint8",
    "binary": "int8",
    "ubinary": "uint8",
}
# Kinds of vectors whose codes depend on ranges.
RANGED: frozenset[OutputDtype] = frozenset({"int8", "uint8"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorRanges:
    """Ranges of the embeddings of a model, found on some texts.

    Attributes:
        low: The smallest value of each dimension, float32 `(dimensions,)`.
        high: The largest value of each dimension, float32 `(dimensions,)`.
        lengths: Mean length of the vectors that are cut to 1, 2, ... dimensions, float32
            `(dimensions,)`.
    """

    low: Vectors
    high: Vectors
    lengths: Vectors

    @classmethod
    def of(cls, vectors: Sequence[Vectors] | Vectors) -> VectorRanges:
        """Return the ranges of vectors `(texts, dimensions)`."""
        stacked = np.asarray(vectors, np.float32)
        lengths = np.sqrt(np.cumsum(stacked.astype(np.float64) ** 2, axis=1)).mean(axis=0)
        return cls(
            low=stacked.min(axis=0), high=stacked.max(axis=0), lengths=lengths.astype(np.float32)
        )

    @classmethod
    def of_json(cls, content: Mapping[str, Sequence[float]]) -> VectorRanges:
        """Return the ranges that `to_json` wrote."""
        names = [each.name for each in dataclasses.fields(cls)]
        return cls(**{name: np.array(content[name], np.float32) for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the ranges as lists, by the names of the attributes."""
        # As text, float32 has fewer digits, and is read as the same value.
        return {
            name: [float(str(value)) for value in values]
            for name, values in dataclasses.asdict(self).items()
        }

    @property
    def have_length_1(self) -> bool:
        """Whether the model scales its embeddings to length 1."""
        return bool(abs(self.lengths[-1] - 1) < LENGTH_TOLERANCE)

    def limits(self, dimensions: int | None, *, is_scaled: bool) -> Vectors:
        """Return the smallest and the largest value of each dimension.

        Args:
            dimensions: Number of leading dimensions that vectors have; `None` for all.
            is_scaled: Whether the vectors were scaled to length 1 after they were cut. The ranges
                are then divided by the mean length.

        Returns:
            float32 `(2, dimensions)`.
        """
        limits = np.stack([self.low, self.high])[:, :dimensions]
        length = self.lengths[limits.shape[1] - 1]
        if not is_scaled or abs(length - 1) < LENGTH_TOLERANCE:
            return limits
        return np.asarray(limits / np.maximum(length, np.float32(1e-12)), np.float32)


def shared_limits(limits: Vectors) -> Vectors:
    """Return one range for all dimensions, with which codes of "int8" are multiples of the values.

    A code is `127 * value / bound`, rounded, where `bound` is the largest absolute value of
    `limits`. So cosines and products of the codes compare vectors as the values do.
    """
    step = np.abs(limits).max() / np.float32(127)
    # Codes are cut off, not rounded, and the first of the 255 steps of the range belongs to -128.
    ends = np.array([-128.5, 126.5], np.float32) * step
    return np.repeat(ends[:, None], limits.shape[1], axis=1)


def checked_limits(given: Any) -> Vectors:
    """Return ranges of the caller as float32 `(2, dimensions)`.

    Raises:
        UserInputError: The shape is another one, a number is not finite, or the first row has the
            larger values.
    """
    try:
        limits = np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise _wrong_ranges(f"got {type(given).__name__}") from error
    if limits.ndim != 2 or len(limits) != 2:
        raise _wrong_ranges(f"got shape {limits.shape}")
    if not np.isfinite(limits).all() or (limits[0] > limits[1]).any():
        raise _wrong_ranges("got a value that is not finite, or a smallest one above the largest")
    return limits


def _wrong_ranges(reason: str) -> UserInputError:
    return UserInputError(
        "`ranges` has to be (2, dimensions): the smallest and the largest value of each dimension; "
        f"{reason}. Pass for example np.stack([vectors.min(axis=0), vectors.max(axis=0)]).",
        argument="ranges",
    )


def quantize_vectors(vectors: Vectors, dtype: OutputDtype, limits: Vectors | None) -> NDArray[Any]:
    """Return vectors as codes.

    `vectors` are float32 `(..., dimensions)`. `limits` are the smallest and largest values `(2,
    dimensions)` for "int8" and "uint8". Further dimensions are ignored.

    Returns:
        "int8" and "uint8" have a code for each dimension. "binary" and "ubinary" have a bit for
        each dimension, eight to a byte.
    """
    if dtype == "float32":
        return vectors
    if dtype not in RANGED:
        packed = np.packbits(vectors > 0, axis=-1)
        return _less_128(packed) if dtype == "binary" else packed
    assert limits is not None, "the caller looked them up"
    width = vectors.shape[-1]
    if limits.shape[1] < width:
        raise UserInputError(
            f"`ranges` has {limits.shape[1]} dimensions, and the embeddings have {width}. Pass "
            "ranges of all dimensions.",
            argument="ranges",
        )
    low, high = limits[:, :width]
    steps = (high - low) / np.float32(255)
    steps = np.where(steps == 0, np.float32(1), steps)
    codes = np.clip(np.floor((vectors - low) / steps), 0, 255).astype(np.uint8)
    return _less_128(codes) if dtype == "int8" else codes


def _less_128(codes: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return codes minus 128, which flips the highest bit."""
    return (codes ^ np.uint8(128)).view(np.int8)
