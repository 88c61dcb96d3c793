"""Kernels of ARM, run by QEMU, against numpy and against each other.

The environment variable `ARM_PYTHON` is the command of a Python for ARM, and needs QEMU 9 or newer,
which shows the features of its CPU. CONTRIBUTING.md says how to set it up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from pathlib import Path

import pytest

import native_guard
from native_guard import digest, run_apart
from native_models import ALL_PARTS, LIMIT, packed_model, random_batch
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import save_packed

HERE = Path(__file__).parent
COMMAND = shlex.split(os.environ.get("ARM_PYTHON", ""))
# QEMU's CPUs that have the instructions and no later ones. It takes three times as long with SVE.
CPUS = {
    "neon-i8mm": "max,sve=off,pauth-impdef=on",
    "neon-dotprod": "neoverse-n1",
    "portable": "cortex-a72",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMMAND, reason="needs ARM_PYTHON; see CONTRIBUTING.md"),
]


@pytest.mark.parametrize("name", CPUS)
def test_a_cpu_has_its_kernel(name) -> None:
    source = (
        "from qdqbert.engines.native.instruction_sets import choose_set; print(choose_set().name)"
    )
    assert run_apart("-c", source, python=COMMAND, QEMU_CPU=CPUS[name]).split() == [name]


@pytest.mark.parametrize("name", CPUS)
def test_kernels_agree_with_numpy(name) -> None:
    options = ("-p", "no:cacheprovider", "-q", "-k", f"[{name}", f"--confcutdir={HERE}")
    variables = {"QEMU_CPU": CPUS[name], "GUARD_ARRAYS": "end", "KERNEL_EXAMPLES": "10"}
    found = run_apart("-m", "pytest", *options, str(HERE / "kernels"), python=COMMAND, **variables)
    assert "passed" in found


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("parts", ALL_PARTS)
def test_a_model_has_the_same_bits_on_both_kinds_of_cpu(tmp_path, parts, floats) -> None:
    shape = dataclasses.replace(ALL_PARTS[parts], floats=floats)
    path, stored = tmp_path / "model.safetensors", tmp_path / "batches.json"
    save_packed(packed_model(shape), path)
    batches = [random_batch(each) for each in ((16,), (LIMIT, 1, 17))]
    stored.write_text(
        json.dumps([{key: each.tolist() for key, each in batch.items()} for batch in batches])
    )
    found = {}
    for name, cpu in CPUS.items():
        arguments = (native_guard.__file__, str(path), name, str(stored), "end")
        found[name] = run_apart(*arguments, python=COMMAND, QEMU_CPU=cpu).split()
    # Attention of NEON computes in float32, and that of all others in 16-bit integers.
    assert found["neon-i8mm"] == found["neon-dotprod"]
    runner = NativeRunner(path, threads=1, kernel="portable")
    assert found["portable"] == [digest(runner.run(each)) for each in batches] * 2
