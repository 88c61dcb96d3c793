"""Functions of rows and of texts, which parts of a graph are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import from_numpy, special

from qdqbert.encoders.model import Activation, Pooling
from qdqbert.graph.encoder.probe import Array

Doubles = NDArray[np.float64]
RowFunction = Activation | Literal["normalize"]

Key = TypeVar("Key", bound=Hashable)

# Some exporters round constants of GELU, such as the root of 2. Its two forms differ by up to 5e-4.
_TOLERANCE = 3e-4
# Elements of a row of length 1 are smaller.
_TOLERANCE_OF_UNITS = 2e-5
# Points at which activation functions are compared. Some clip values above 10.
_POINTS = np.linspace(-12, 12, 193)


def erf(x: Array) -> Array:
    """Return the error function of an array."""
    result: Array = special.erf(from_numpy(np.ascontiguousarray(x))).numpy()
    return result


def _gelu(x: Doubles) -> Doubles:
    result: Doubles = x * 0.5 * (1 + erf(x / math.sqrt(2)))
    return result


def _gelu_tanh(x: Doubles) -> Doubles:
    result: Doubles = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


ACTIVATIONS: Mapping[Activation, Callable[[Doubles], Doubles]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def _normalize(x: Doubles) -> Doubles:
    result: Doubles = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
    return result


_POOLINGS: Mapping[Pooling, Callable[[Doubles], Doubles]] = {
    "first": lambda x: x[0],
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / math.sqrt(len(x)),
}


def sample(shape: tuple[int, ...]) -> Array:
    """Return float32 values of a shape, on which the candidate functions give different results."""
    points = np.random.default_rng(0).permutation(_POINTS)
    return np.resize(points, shape).astype(np.float32)


def match_rows(x: Array, y: Array) -> tuple[RowFunction, ...] | None:
    """Return the functions of rows that map `x` to `y`.

    Args:
        x: Rows, from `sample`.
        y: Results of a part of a graph for them.

    Returns:
        In order: an activation function or none, and `"normalize"` or not. `None` if it is another
        function.
    """
    if x.size != y.size:
        return None
    rows, made = x.astype(np.float64), y.reshape(x.shape)
    candidates: dict[tuple[RowFunction, ...], Doubles] = {(): rows}
    candidates |= {(name,): function(rows) for name, function in ACTIVATIONS.items()}
    names = closest(made, candidates)
    if names is not None:
        return names
    units = {(*names, "normalize"): _normalize(each) for names, each in candidates.items()}
    return closest(made, units, tolerance=_TOLERANCE_OF_UNITS)


def match_pooling(
    x: Array, y: Array, is_text: NDArray[np.bool_]
) -> tuple[Pooling, tuple[RowFunction, ...]] | None:
    """Return the pooling and the function of rows that map `x` to `y`; `None` for other functions.

    Args:
        x: States `(texts, tokens, hidden)`, from `sample`.
        y: Results of a part of a graph for them.
        is_text: Which tokens are not padding, `(texts, tokens)`.
    """
    tokens = (is_text.size, -1)
    if x.size == y.size:
        # States of padding have no meaning, and XLM multiplies by the mask.
        rows = match_rows(*(each.reshape(tokens)[is_text.ravel()] for each in (x, y)))
        if rows is not None:
            return "none", rows
    states = x.reshape(*is_text.shape, -1).astype(np.float64)
    for name, pool in _POOLINGS.items():
        pooled = np.stack([pool(text[keep]) for text, keep in zip(states, is_text, strict=True)])
        rows = match_rows(pooled, y)
        if rows is not None:
            return name, rows
    return None


def match_column(x: Array, y: Array) -> int | None:
    """Return the column of `x` that `y` is, without its last axis; `None` if it is none."""
    if y.size * x.shape[-1] != x.size:
        return None
    for column in range(x.shape[-1]):
        if np.array_equal(x[..., column].ravel(), y.ravel()):
            return column
    return None


def closest(
    made: Array, candidates: Mapping[Key, Doubles], *, tolerance: float = _TOLERANCE
) -> Key | None:
    """Return the key of the candidate that an array is; `None` if it is another one.

    Args:
        made: The array.
        candidates: Arrays of its shape.
        tolerance: Largest difference, besides the rounding of float32.
    """
    found = min(candidates, key=lambda key: float(np.abs(made - candidates[key]).max(initial=0)))
    is_close = np.allclose(made, candidates[found], rtol=1e-5, atol=tolerance)
    return found if is_close else None
