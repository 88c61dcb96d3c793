"""Kernels compiled for GPUs on a machine without one: what their machine code has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "triton_compiled.py"
# Bytes of shared memory that a block can have.
_SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
_PRODUCTS = {90: ("IGMMA", "IMMA"), 100: ("UTCIMMA", "IMMA")}


@pytest.mark.usual("90")
@pytest.mark.parametrize("capability", _SHARED)
def test_tiles_use_tensor_cores_and_fit_into_registers_and_memory(capability, tmp_path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    sizes = [] if capability == 90 else ["all"]
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), str(capability), *sizes],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["kernel"] for each in found} >= {"linear", "attention", "add_norm", "embed"}
    for each in found:
        assert each["stack"] == 0, each
        assert each["shared"] <= _SHARED[capability] * 1024, each
        if each["kernel"] == "linear" and each["is_int8"]:
            kinds = _PRODUCTS.get(capability, ("IMMA",))
            assert any(kind in each["instructions"] for kind in kinds), each
