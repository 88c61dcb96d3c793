"""How near outputs are to the float model's, without labels."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.tasks.task import RowKind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Agreement of one set of rows with the float model's, over held-out texts.

    Attributes:
        texts: How many were compared.
        sqnr_db: Signal to quantization noise ratio over all rows, dB.
        cosine_mean: Mean over texts of the cosine to the float row; for embeddings only.
        cosine_min: The worst text's.
        flips_percent: Texts whose largest entry is another one, %; for classes only.
    """

    texts: int
    sqnr_db: float
    cosine_mean: float | None
    cosine_min: float | None
    flips_percent: float | None


def compare(reference: ArrayLike, candidate: ArrayLike, *, kind: RowKind) -> Fidelity:
    """Fidelity of `candidate` to `reference`, both `(texts, features)`.

    Args:
        reference: The float model's rows.
        candidate: The rows to judge.
        kind: What a row is.
    """
    a, b = _float64(reference), _float64(candidate)
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"Rows must have equal shapes (texts, features): {a.shape}, {b.shape}.")
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(axis=1) / np.maximum(norms, np.finfo(np.float64).tiny)
    flipped = (a.argmax(axis=1) != b.argmax(axis=1)).mean() * 100
    return Fidelity(
        texts=len(a),
        sqnr_db=sqnr_db(a, b),
        cosine_mean=float(cosines.mean()) if kind == "embedding" else None,
        cosine_min=float(cosines.min()) if kind == "embedding" else None,
        flips_percent=float(flipped) if kind == "classes" else None,
    )


def sqnr_db(reference: ArrayLike, candidate: ArrayLike) -> float:
    """`10 log10(sum reference^2 / sum (candidate - reference)^2)`; `inf` if they are equal."""
    a, b = _float64(reference), _float64(candidate)
    noise = float(((b - a) ** 2).sum())
    signal = float((a**2).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _float64(values: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
