"""Run `benchmarks/gpu.py` in Triton's interpreter, with tiny sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from python_process import call_python

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


def run(*arguments: str, output: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status and the sections of the written file."""
    done = call_python(SCRIPT, *arguments, "--small", "--output", output)
    assert output.is_file(), done.stderr
    return done.returncode, json.loads(output.read_text())["sections"]


@pytest.mark.slow
def test_sections_run_in_tritons_interpreter(tmp_path) -> None:
    names = ["machine", "correctness", "bits", "products", "forward", "mixed", "tiles"]
    names += ["chunks", "fake_quantize", "memory", "sanitizer", "forward_compiled"]
    arguments = ["--device", "cpu", "--sections", *names]
    status, sections = run(*arguments, output=tmp_path / "gpu.json")
    assert status == 0, sections
    found = {section["name"]: section for section in sections}
    assert list(found) == names
    assert {found[name]["status"] for name in names[:9]} == {"ok"}
    assert {found[name]["status"] for name in names[9:]} == {"skipped"}
    checks = [row for each in sections for row in each["rows"] if "passed" in row]
    assert len(checks) == 1 + 1 + 1 + 18
    assert all(row["passed"] for row in checks)


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
