"""Run `benchmarks/gpu.py` on the CPU, with tiny sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


def run(*arguments: str, output: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status and the sections of the written file."""
    command = [sys.executable, str(SCRIPT), *arguments, "--small", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert output.is_file(), done.stderr
    return done.returncode, json.loads(output.read_text())["sections"]


@pytest.mark.slow
def test_sections_run_on_a_cpu(tmp_path) -> None:
    names = ["machine", "fake_quantize", "int8_matmul", "forward", "step", "qordered"]
    arguments = ["--device", "cpu", "--sections", *names]
    status, sections = run(*arguments, output=tmp_path / "gpu.json")
    assert status == 0
    assert [section["name"] for section in sections] == names
    *measured, qordered = sections
    assert {section["status"] for section in measured} == {"ok"}
    assert qordered["status"] == "skipped"
    assert "has no CUDAExecutionProvider" in qordered["reason"]
    checks = [row for section in sections[1:3] for row in section["rows"]]
    assert len(checks) == 18 + 4
    assert all(row["passed"] for row in checks)
    (quantized,) = (row for row in sections[3]["rows"] if "quantized float32" in row["case"])
    assert "20 quantizers" in quantized["case"]
    assert quantized["median ms"] > 0


@pytest.mark.slow
def test_compiled_sections_run_on_a_cpu(tmp_path) -> None:
    names = ["fake_quantize_compiled", "forward_compiled", "step_compiled"]
    arguments = ["--device", "cpu", "--sections", *names]
    status, sections = run(*arguments, output=tmp_path / "gpu.json")
    assert status == 0
    assert {section["status"] for section in sections} == {"ok"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.slow
def test_a_section_that_fails_is_reported_and_the_time_limit_kept(tmp_path) -> None:
    status, sections = run("--sections", "machine", output=tmp_path / "gpu.json")
    assert status == 1
    assert sections[0]["status"] == "error"
    assert "PyTorch finds no CUDA device" in sections[0]["reason"]
    status, sections = run("--minutes", "0.1", output=tmp_path / "late.json")
    assert status == 0
    assert {section["reason"] for section in sections} == {"out of time"}
