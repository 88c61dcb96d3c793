from __future__ import annotations

import subprocess
import sys

import pytest

import qdqbert
from python_process import run_python
from qdqbert.common.extras import is_installed
from qdqbert.common.machine import _FEATURES, cpu_features, usable_cores
from qdqbert.engines.native import instruction_sets
from qdqbert.verbs.doctor import run as module
from qdqbert.verbs.doctor.run import find_gpus, verdict_on


def test_the_report_describes_this_machine() -> None:
    report = qdqbert.doctor()
    assert tuple(report.cpu_features) == cpu_features()
    assert report.cores == usable_cores()
    versions = {part.name: part.version for part in (*report.engines, *report.extras)}
    import onnxruntime
    import torch

    assert versions["onnxruntime"] == onnxruntime.__version__
    # torch's build for CUDA adds "+cu130" to its own.
    assert torch.__version__.startswith(versions["quantize"])
    [engine] = [part for part in report.engines if part.name == "onnxruntime"]
    assert "provider cpu" in engine.details
    assert engine.install is None


def test_the_cache_is_described(checkpoints, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path / "cache"))
    found = qdqbert.doctor().cache
    assert found.folder == str(tmp_path / "cache" / "models")
    assert (found.models, found.size_bytes, found.problem) == (0, 0, None)
    for name in ("sentence", "classifier"):
        qdqbert.load(checkpoints(name), check=False).close()
    (tmp_path / "cache" / "models" / ".partial-x").mkdir()
    (tmp_path / "cache" / "models" / "url-x").mkdir()
    files = [each for each in (tmp_path / "cache" / "models").rglob("*") if each.is_file()]
    found = qdqbert.doctor().cache
    assert (found.models, found.downloads) == (2, 1)
    assert found.size_bytes == sum(each.stat().st_size for each in files)
    assert found.size_bytes < found.limit_bytes


def test_a_cache_that_cannot_be_read_is_reported(tmp_path, monkeypatch) -> None:
    (tmp_path / "models").write_text("a file")
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    found = qdqbert.doctor().cache
    assert (found.models, found.size_bytes, found.problem) == (None, None, "Not a directory")


def test_every_feature_has_a_meaning() -> None:
    assert set(module._MEANINGS) == set(_FEATURES)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (("avx2", "avx512_vnni", "amx_int8"), "AMX"),
        (("avx2", "avx_vnni"), "VNNI"),
        (("avx2", "avx512f"), "OpenVINO's INT8 can be slower"),
        (("asimddp",), "it has INT8 dot products"),
        ((), "no feature that is known"),
    ],
    ids=str,
)
def test_the_verdict_is_about_the_best_feature(features, words) -> None:
    assert words in verdict_on(features)


def test_what_is_missing_has_the_command_that_installs_it(monkeypatch) -> None:
    for name in ("ray", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)
    report = qdqbert.doctor()
    missing = {part.name: part.install for part in (*report.engines, *report.extras)}
    assert missing["openvino"] == "pip install 'qdqbert[openvino]'"
    assert missing["ray"] == "pip install 'qdqbert[ray]'"


def answer(code: int, text: str):
    return lambda *_, **__: subprocess.CompletedProcess([], code, stdout=text, stderr="")


def test_gpus_are_those_that_the_driver_lists(monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    lines = "GPU 0: NVIDIA A (UUID: GPU-1)\nGPU 1: NVIDIA B (UUID: GPU-2)\n"
    assert find_gpus(answer(0, lines)) == ("NVIDIA A", "NVIDIA B")
    assert find_gpus(answer(9, "no driver")) == ()
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    assert find_gpus(answer(0, lines)) == ()


def test_a_gpu_that_onnxruntime_cannot_use_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(module, "find_gpus", lambda: ("NVIDIA A",))
    notices = qdqbert.doctor().notices
    assert ["install onnxruntime-gpu" in each for each in notices].count(True) == 1


@pytest.mark.parametrize(
    ("kind", "notices"), [("CPUs", 1), ("AMD's GPUs", 1), ("CUDA", 0)], ids=["cpu", "amd", "cuda"]
)
def test_a_torch_that_is_not_for_the_gpu_is_reported(monkeypatch, kind, notices) -> None:
    monkeypatch.setattr(module, "find_gpus", lambda: ("NVIDIA A",))
    parts = ("torch", "triton")
    monkeypatch.setattr(module, "is_installed", lambda name: name in parts or is_installed(name))
    monkeypatch.setattr(module, "torch_is_for", lambda: kind)
    report = qdqbert.doctor()
    part = next(each for each in report.extras if each.name == "cuda")
    assert part.details == (f"torch for {kind}",)
    found = [each for each in report.notices if "install onnxruntime-gpu" not in each]
    words = f"by `device='cuda'`. The installed torch is built for {kind}. Install its build for"
    assert [words in each for each in found] == [True] * notices


def test_a_slow_kernel_of_the_native_engine_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(instruction_sets, "cpu_features", lambda: ())
    monkeypatch.setattr(module, "find_gpus", lambda: ())
    [notice] = qdqbert.doctor().notices
    assert "no fast kernel for this CPU, and can be 20 times slower" in notice


def test_neither_torch_nor_transformers_is_imported() -> None:
    code = "import sys, qdqbert; qdqbert.doctor(); print('torch' in sys.modules)"
    assert run_python("-c", code) == "False"
