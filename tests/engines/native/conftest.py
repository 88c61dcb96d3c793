"""Fixtures of the native engine. Nothing here depends on what this CPU has."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from qdqbert.engines.native import schedule
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_sets import usable_sets
from qdqbert.quantization.hadamard import Hadamard

collect_ignore_glob = [] if importlib.util.find_spec("llvmlite") else ["*.py"]
USABLE = [each.name for each in usable_sets()]
STATES, INNER = Hadamard(members=8, block=8), Hadamard(block=16)
# Kernels take a second to compile. That all sets have the same bits is tested, too.
SOME = [
    name if name == USABLE[0] else pytest.param(name, marks=pytest.mark.slow) for name in USABLE
]


@pytest.fixture(autouse=True)
def _without_old_copies() -> Iterator[None]:
    """Free the guarded copies of a test's arrays."""
    yield
    if "GUARD_ARRAYS" in os.environ:
        from native_kernels import forget_arrays

        forget_arrays()


@pytest.fixture(autouse=True)
def _divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share the work of small models, too."""
    for name in ("PRODUCTS_ALONE", "PRODUCTS_OF_A_SLICE"):
        monkeypatch.setattr(schedule, name, 0)


@pytest.fixture(scope="session", params=SOME)
def kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels of each instruction set that this CPU has."""
    from native_kernels import kernels_of

    return kernels_of(request.param, Features(activation="gelu"))


@pytest.fixture(scope="session", params=SOME)
def dynamic_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels for dynamic scales of each instruction set that this CPU has."""
    from native_kernels import kernels_of

    return kernels_of(request.param, Features(activation="gelu", dynamic=True))


@pytest.fixture(scope="session", params=SOME)
def float_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels in float of each instruction set that this CPU has."""
    from native_kernels import kernels_of

    return kernels_of(request.param, Features(activation="gelu", floats=True))


@pytest.fixture(scope="session", params=SOME)
def spread_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels of models whose channels are spread, in two ways."""
    from native_kernels import kernels_of

    features = Features(activation="gelu", dynamic=True, spread_states=STATES, spread_inner=INNER)
    return kernels_of(request.param, features)


@pytest.fixture(scope="session", params=SOME)
def modern_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels for dynamic scales of models with all parts that BERT lacks."""
    from native_kernels import kernels_of

    features = Features(
        activation="gelu",
        dynamic=True,
        norms_first=True,
        gated=True,
        rotary=True,
        has_windows=True,
        relative_keys=True,
        relative_queries=True,
        positions=False,
    )
    return kernels_of(request.param, features)


@pytest.fixture(scope="session", params=SOME)
def rounding_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels of models that fake-quantize inputs of products and adds."""
    from native_kernels import kernels_of

    features = Features(activation="gelu", rounds_attention=True, rounds_adds=True)
    return kernels_of(request.param, features)


@pytest.fixture(scope="session", params=SOME)
def windowed_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels for dynamic scales of models with sliding windows."""
    from native_kernels import kernels_of

    return kernels_of(request.param, Features(activation="gelu", dynamic=True, has_windows=True))


@pytest.fixture(scope="session", params=SOME)
def kernel(request: pytest.FixtureRequest) -> str:
    """Name of each instruction set that this CPU has."""
    return str(request.param)
