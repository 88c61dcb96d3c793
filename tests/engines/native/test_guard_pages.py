"""No kernel leaves its arrays: it would crash at the page before or after them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

import native_guard
from native_guard import digest, run_apart
from native_models import ALL_PARTS, LIMIT, VOCABULARY, packed_model, random_batch
from qdqbert.encoders.model import Head, HeadOutput, Linear
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import save_packed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="needs mprotect"),
]
HERE = Path(__file__).parent
# Most mistakes are at the end.
SIDES = ("start", "end")


@pytest.mark.parametrize("side", SIDES)
def test_kernels_stay_in_their_arrays(side) -> None:
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-q", f"--confcutdir={HERE}")
    # All tests and instruction sets together have 10,000 shapes.
    variables = {"GUARD_ARRAYS": side, "KERNEL_EXAMPLES": "60"}
    found = run_apart("-m", "pytest", *options, str(HERE / "kernels"), **variables)
    assert "passed" in found


def _decoder(hidden: int) -> Linear:
    rng = np.random.default_rng(0)
    weight, bias = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((VOCABULARY, hidden), (VOCABULARY,))
    )
    return Linear(weight=weight, bias=bias)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, shape in ALL_PARTS.items()
        for kind in ({}, {"dynamic": True}, {"dynamic": False, "floats": True})
        if kind or not shape.experts
    ],
)
@pytest.mark.parametrize("side", SIDES)
def test_a_forward_pass_stays_in_its_buffers(tmp_path, kernel, side, name, kind) -> None:
    shape = dataclasses.replace(ALL_PARTS[name], **kind)
    heads = (
        Head(poolings=("none",), steps=(), outputs=(HeadOutput(name="states"),)),
        Head(poolings=("mean",), steps=("tanh", "normalize"), outputs=(HeadOutput(name="pooled"),)),
        Head(
            poolings=("max",),
            steps=(_decoder(shape.hidden), "relu"),
            outputs=(HeadOutput(name="words"),),
            token_steps=1,
        ),
    )
    path = tmp_path / "model.safetensors"
    save_packed(packed_model(shape, heads), path)
    # Larger batches come first: their buffers would hide what later ones read.
    lengths = ((1,), (16,), (LIMIT,), (LIMIT, 1, 17, 5), (33,) * 9)
    batches = [random_batch(each) for each in lengths]
    stored = tmp_path / "batches.json"
    stored.write_text(
        json.dumps([{name: each.tolist() for name, each in batch.items()} for batch in batches])
    )
    script = native_guard.__file__
    found = run_apart(script, str(path), kernel, str(stored), side).split()
    runner = NativeRunner(path, threads=1, kernel=kernel)
    assert found == [digest(runner.run(each)) for each in batches] * 2


def test_a_crash_is_reported() -> None:
    source = "import native_guard as n; n.Guard(at_start=False).memory(8)[:].ctypes.data; " + (
        "import ctypes; m = n.Guard(at_start=False).memory(8); ctypes.memset(m.ctypes.data, 1, 9)"
    )
    folder = str(Path(native_guard.__file__).parent)
    with pytest.raises(AssertionError, match=r"exit status -\d+"):
        run_apart("-c", source, PYTHONPATH=folder)
