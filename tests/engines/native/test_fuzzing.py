"""Random models and damaged files, in a process of their own with a guard page around each buffer.

Few of them are run in `make test`, and thousands in `make test-slow`. The kernels have tests of
random shapes each, which `test_guard_pages` runs with guard pages.
"""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

import native_damage
import native_fuzz
from native_guard import run_apart
from native_models import ALL_PARTS, packed_model
from qdqbert.encoders.model import Head, HeadOutput
from qdqbert.engines.native.instruction_sets import usable_sets
from qdqbert.engines.native.storage import save_packed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
USABLE = [each.name for each in usable_sets()]
HEADS = (
    Head(poolings=("none",), steps=(), outputs=(HeadOutput(name="states"),)),
    Head(poolings=("mean",), steps=("tanh", "normalize"), outputs=(HeadOutput(name="pooled"),)),
)


@pytest.mark.parametrize(
    ("kernel", "side", "count"),
    [
        (USABLE[0], "end", 2),
        *(pytest.param(each, "end", 400, marks=pytest.mark.slow) for each in USABLE),
        pytest.param(USABLE[0], "start", 400, marks=pytest.mark.slow),
    ],
)
def test_random_models_compute_what_numpy_does(tmp_path, kernel, side, count) -> None:
    arguments = (kernel, "0", str(count), str(tmp_path / "model.safetensors"), side)
    assert run_apart(native_fuzz.__file__, *arguments) == f"{count} models"


@pytest.mark.parametrize("count", [20, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_run_or_are_refused(tmp_path, count) -> None:
    files = []
    for number, (name, parts) in enumerate(ALL_PARTS.items()):
        files.append(tmp_path / f"{name}.safetensors")
        shape = dataclasses.replace(
            parts,
            layers=1,
            limit=native_damage.LONGEST,
            dynamic=number % 3 == 1,
            floats=number % 3 == 2,
        )
        save_packed(packed_model(shape, HEADS), files[-1])
    arguments = (USABLE[0], "0", str(count), str(tmp_path / "damaged"))
    found = json.loads(run_apart(native_damage.__file__, *map(str, files), *arguments))
    assert sum(found.values()) == count
    # Changed weights, and a few changed settings, are no damage that anything shows.
    assert found["CheckpointError"] >= 0.6 * count
    assert found["ran"] >= 0.05 * count
