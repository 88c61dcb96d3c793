"""Engines send nothing, which shows in the files that their telemetry would leave."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
from pathlib import Path

import onnx_ir as ir
import pytest

from python_process import run_python
from qdqbert.graphs.check import save_graph

ROOT = Path(__file__).parents[2]
IDENTITY = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] input_ids) => (float[batch, sequence] y) { y = Cast <to = 1> (input_ids) }
"""


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """The variables of this process, with empty folders and nothing said of telemetry."""
    folders = {"HOME": tmp_path / "home", "TMPDIR": tmp_path / "temporary"}
    for folder in folders.values():
        folder.mkdir()
    silent = ("ORT_DISABLE_TELEMETRY", "CI", "TF_BUILD", "JENKINS_URL")
    kept = {name: value for name, value in os.environ.items() if name not in silent}
    return kept | {name: str(folder) for name, folder in folders.items()}


def test_an_engine_leaves_no_files_of_telemetry(tmp_path, environment, engine) -> None:
    if engine == "onnxruntime":
        version = importlib.metadata.version("onnxruntime")
        if tuple(map(int, version.split(".")[:2])) < (1, 29):
            pytest.skip(f"onnxruntime {version} has no telemetry on Linux")
    save_graph(ir.from_onnx_text(IDENTITY), tmp_path / "model.onnx")
    load = {"engine": engine, "model": str(tmp_path / "model.onnx"), "threads": 1}
    requests = [
        {**load, "vocab_size": 9, "choices": None, "provider": None, "device": None},
        {"batch": 1, "sequence": 2, "seconds": 0.0},
    ]
    written = "".join(f"{json.dumps(request)}\n" for request in requests)
    words = ["-m", "qdqbert.evidence.worker"]
    assert "times_ms" in run_python(*words, input=written, env=environment)
    # onnxruntime writes `.ses` into the temporary folder, OpenVINO `intel` into the home folder.
    made = [*(tmp_path / "home").rglob("*"), *(tmp_path / "temporary").rglob("*")]
    assert made == []


@pytest.mark.openvino
def test_openvinos_telemetry_can_still_be_imported_by_others() -> None:
    pytest.importorskip("openvino_telemetry")
    code = "import qdqbert.engines.openvino, openvino_telemetry; print(openvino_telemetry.__name__)"
    assert run_python("-c", code) == "openvino_telemetry"


def test_a_users_own_setting_is_kept(environment) -> None:
    code = "import os, qdqbert; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run_python("-c", code, env=environment | {"ORT_DISABLE_TELEMETRY": "0"}) == "0"


def test_scripts_import_this_package_before_an_engine() -> None:
    scripts = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/**/*.py")]
    assert scripts
    late = []
    for path in scripts:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in getattr(node, "names", ())]
            module = getattr(node, "module", None)
            found = {name.split(".")[0] for name in ([module] if module else names)}
            if "qdqbert" in found:
                break
            if found & {"onnxruntime", "openvino", "nncf"}:
                late.append(path.name)
                break
    assert late == []
