"""Fixtures of the native engine. Nothing here depends on what this CPU has."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from qdqbert.engines.native.instruction_sets import usable_sets

collect_ignore_glob = [] if importlib.util.find_spec("llvmlite") else ["*.py"]
USABLE = [each.name for each in usable_sets()]


@pytest.fixture(scope="session", params=USABLE)
def kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels of each instruction set that this CPU has."""
    from native_kernels import kernels_of

    return kernels_of(request.param)


@pytest.fixture(scope="session", params=USABLE)
def dynamic_kernels(request: pytest.FixtureRequest) -> Any:
    """Kernels for dynamic scales of each instruction set that this CPU has."""
    from native_kernels import kernels_of

    return kernels_of(request.param, dynamic=True)


@pytest.fixture(scope="session", params=USABLE)
def kernel(request: pytest.FixtureRequest) -> str:
    """Name of each instruction set that this CPU has."""
    return str(request.param)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for compiled kernels, the same for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if folder.name.startswith("popen-") else folder
    return shared / "cache"


@pytest.fixture(autouse=True)
def _own_cache(kernel_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's cache alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(kernel_cache))
