"""Functions of rows and of texts, which parts of a graph are compared with."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from qdqbert.calibration.reference.body import ACTIVATIONS, pool, tensor_of
from qdqbert.encoders.model import Activation, Pooling
from qdqbert.graphs.encoder.probe import Array

RowFunction = Activation | Literal["normalize"]

Key = TypeVar("Key", bound=Hashable)

# Some exporters round constants of GELU, such as the root of 2. Its two forms differ by up to 5e-4.
_TOLERANCE = 3e-4
# Elements of a row of length 1 are smaller.
_TOLERANCE_OF_UNITS = 2e-5
# Points at which activation functions are compared. Some clip values above 10.
_POINTS = np.linspace(-12, 12, 193)


def sample(shape: tuple[int, ...]) -> Array:
    """Return float32 values of a shape, on which the candidate functions give different results."""
    points = np.random.default_rng(0).permutation(_POINTS)
    return np.resize(points, shape).astype(np.float32)


def match_activation(made: Array, x: Array, factor: Array) -> Activation | None:
    """Return the activation function whose values for `x`, times a factor, an array has."""
    rows, factors = _doubles(x), _doubles(factor)
    candidates = {name: function(rows) * factors for name, function in ACTIVATIONS.items()}
    # The factors are as large as 12.
    return _closest(made.reshape(x.shape), candidates, tolerance=4e-3)


def match_rows(x: Array, y: Array) -> tuple[RowFunction, ...] | None:
    """Return the functions of rows that map `x`, from `sample`, to `y`.

    Returns:
        In order: an activation function or none, and `"normalize"` or not. `None` if it is another
        function.
    """
    if x.size != y.size:
        return None
    rows, made = _doubles(x), y.reshape(x.shape)
    candidates: dict[tuple[RowFunction, ...], Tensor] = {(): rows}
    candidates |= {(name,): function(rows) for name, function in ACTIVATIONS.items()}
    names = _closest(made, candidates, tolerance=_TOLERANCE)
    if names is not None:
        return names
    units = {
        (*names, "normalize"): functional.normalize(each, dim=-1)
        for names, each in candidates.items()
    }
    return _closest(made, units, tolerance=_TOLERANCE_OF_UNITS)


def match_pooling(
    x: Array, y: Array, is_text: NDArray[np.bool_]
) -> tuple[Pooling, tuple[RowFunction, ...]] | None:
    """Return the pooling and the function of rows that map `x` to `y`; `None` for other functions.

    `x` are states `(texts, tokens, hidden)`, from `sample`, and `is_text` says which tokens are not
    padding, `(texts, tokens)`.
    """
    states = _doubles(x.reshape(*is_text.shape, -1))
    for pooling in get_args(Pooling):
        rows, made = pool(states, tensor_of(is_text), (pooling,)).numpy(), y
        if pooling == "none" and x.size == y.size:
            # States of padding have no meaning, and XLM multiplies by the mask.
            rows, made = rows[is_text], y.reshape(states.shape)[is_text]
        names = match_rows(rows, made)
        if names is not None:
            return pooling, names
    return None


def match_column(x: Array, y: Array) -> int | None:
    """Return the column of `x` that `y` is, without its last axis; `None` if it is none."""
    if y.size * x.shape[-1] != x.size:
        return None
    for column in range(x.shape[-1]):
        if np.array_equal(x[..., column].ravel(), y.ravel()):
            return column
    return None


def _doubles(array: Array) -> Tensor:
    return tensor_of(array.astype(np.float64))


def _closest(made: Array, candidates: Mapping[Key, Tensor], *, tolerance: float) -> Key | None:
    """Return the key of the candidate that an array is; `None` if it is another one.

    They may differ by `tolerance`, besides the rounding of float32.
    """
    arrays = {key: each.numpy() for key, each in candidates.items()}
    found = min(arrays, key=lambda key: float(np.abs(made - arrays[key]).max(initial=0)))
    return found if np.allclose(made, arrays[found], rtol=1e-5, atol=tolerance) else None
