"""Functions of float32, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from native_kernels import ACTIVATIONS_OF_NUMPY as ACTIVATIONS
from native_kernels import Kernels
from qdqbert.engines.native import functions
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.ir import F32, I64, PTR, Module, vector

# Signed, dense around 0, and beyond where functions are constant.
_GRID = np.concatenate([np.linspace(-12, 12, 100_001), np.geomspace(1e-8, 80, 5_000)])
GRID = np.concatenate([_GRID, -_GRID])
GRID = GRID[: len(GRID) // 16 * 16].astype(np.float32)

# The errors that the docstrings state.
ERRORS = {
    "gelu": lambda x: np.maximum(6e-5, 6e-6 * np.abs(x)),
    "gelu_tanh": lambda x: 1e-6 * np.abs(x) + 1e-7,
    "relu": lambda x: 0 * x,
    "silu": lambda x: 1e-6 * np.abs(x) + 1e-7,
    "tanh": lambda x: 1e-6 + 0 * x,
}


@pytest.mark.parametrize("name", functions.ACTIVATIONS)
def test_activation_functions_are_as_exact_as_they_say(kernels, name) -> None:
    x = GRID.copy()
    kernels(f"apply_{name}", x, len(x))
    wide = GRID.astype(np.float64)
    error = np.abs(x - ACTIVATIONS[name](wide))
    worst = int(np.argmax(error - ERRORS[name](wide)))
    assert error[worst] <= ERRORS[name](wide)[worst], f"{name}({wide[worst]}) = {x[worst]}"


def test_gelu_is_exact_in_float(float_kernels) -> None:
    x = GRID.copy()
    float_kernels("apply_gelu", x, len(x))
    wide = GRID.astype(np.float64)
    assert (np.abs(x - ACTIVATIONS["gelu"](wide)) <= 3e-7 * np.abs(wide)).all()


@pytest.fixture(scope="module")
def apply():
    """Return a function that applies one of the functions to an array."""
    isa = choose_set()
    module, floats = Module(), vector(F32, 16)
    chosen = ("exp2", "exp", "sigmoid")
    for name in chosen:
        with module.function(name, x=PTR, count=I64) as f, f.loop(0, f.count, 16) as index:
            place = f.x + index * 4
            f.store(getattr(functions, name)(f, f.load(floats, place)), place)
    compiled = Kernels(module, isa)

    def run(name: str, values):
        x = np.asarray(values, np.float32)[: len(values) // 16 * 16].copy()
        before = x.astype(np.float64)
        compiled(name, x, len(x))
        return before, x

    return run


def test_powers_are_as_exact_as_they_say(apply) -> None:
    x, found = apply("exp2", np.linspace(-126, 127, 400_000))
    assert np.abs(found / 2.0**x - 1).max() <= 3e-7
    _, found = apply("exp2", np.array([-126.5, -1e3, -1e30, -np.inf] * 4))
    assert (found == np.float32(2.0**-126)).all()
    x, found = apply("exp", np.linspace(-80, 88, 100_000))
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-5)
    x, found = apply("sigmoid", np.linspace(-100, 100, 100_000))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-x)), rtol=1e-5, atol=1e-34)
