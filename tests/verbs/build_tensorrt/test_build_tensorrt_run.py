"""The TensorRT engine of a quantized folder, built with a fake TensorRT."""

from __future__ import annotations

import json
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qdqbert
from calibration_cache import read_calibration_cache
from qdqbert import build_tensorrt
from qdqbert.cli import main
from qdqbert.engines.runner import open_runner
from qdqbert.errors import GraphError, MissingExtraError, UserInputError
from qdqbert.verbs.build_tensorrt import run as build_tensorrt_run
from qdqbert.verbs.build_tensorrt.run import build_engine

SHAPES = {"input_ids": ((1, 1), (8, 32), (8, 32)), "attention_mask": ((1, 1), (8, 32), (8, 32))}
# Flags of the network by version: EXPLICIT_BATCH, STRONGLY_TYPED, none.
CREATION = {"8.6.1": 1, "10.13.2.6": 2, "11.4.1": 0}


class Recorder:
    """Records the calls of an object of TensorRT, with the name of each."""

    def __init__(self, calls: list[tuple[Any, ...]], name: str, **results: Any) -> None:
        self._calls, self._name, self._results = calls, name, results

    def __getattr__(self, name: str) -> Any:
        if name == "num_errors":
            return 1

        def call(*arguments: Any) -> Any:
            self._calls.append((f"{self._name}.{name}", *arguments))
            return self._results.get(name)

        return call


class FakeEngine:
    """A TensorRT engine with the given inputs and the output `logits`."""

    def __init__(self, calls: list[tuple[Any, ...]], names: list[str]) -> None:
        self.calls, self.names = calls, [*names, "logits"]
        self.num_io_tensors = len(self.names)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_dtype(self, name: str) -> str:
        return "float32" if name == "logits" else "int64"

    def create_execution_context(self) -> FakeEngine:
        return self

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> None:
        self.shapes[name] = shape

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name == "logits":
            # The shape of the output is known once those of all inputs are set.
            assert len(self.shapes) == len(self.names) - 1
        return self.shapes.get(name, (2, 3))

    def set_tensor_address(self, name: str, address: int) -> None:
        assert address > 0

    def execute_async_v3(self, stream_handle: int) -> bool:
        self.calls.append(("execute", dict(self.shapes), stream_handle))
        return True


def fake_tensorrt(
    version: str = "10.13.2.6", *, parses: bool = True, builds: bool = True
) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return a module with the part of TensorRT's API that is used, and a list of its calls."""
    calls: list[tuple[Any, ...]] = []
    config = Recorder(calls, "config")
    builder = Recorder(
        calls,
        "builder",
        create_network="network",
        create_builder_config=config,
        create_optimization_profile=Recorder(calls, "profile"),
        build_serialized_network=bytearray(b"plan") if builds else None,
    )
    trt = types.ModuleType("tensorrt")
    trt.__version__ = version  # type: ignore[attr-defined]
    trt.Logger = type("Logger", (), {"WARNING": 2, "__init__": lambda self, level: None})
    trt.Builder = lambda logger: builder  # type: ignore[attr-defined]
    trt.OnnxParser = lambda network, logger: Recorder(  # type: ignore[attr-defined]
        calls, "parser", parse_from_file=parses, get_error="no such operator"
    )
    flags: dict[str, int] = {"EXPLICIT_BATCH": 0, "STRONGLY_TYPED": 1}
    if version.startswith("8"):
        del flags["STRONGLY_TYPED"]
    trt.NetworkDefinitionCreationFlag = types.SimpleNamespace(**flags)  # type: ignore[attr-defined]
    if int(version.split(".")[0]) < 11:
        kinds = types.SimpleNamespace(FP16="FP16", INT8="INT8")
        trt.BuilderFlag = kinds  # type: ignore[attr-defined]
    trt.nptype = np.dtype  # type: ignore[attr-defined]
    made = FakeEngine(calls, ["input_ids", "attention_mask", "token_type_ids"])
    trt.Runtime = lambda logger: Recorder(  # type: ignore[attr-defined]
        calls, "runtime", deserialize_cuda_engine=made
    )
    return trt, calls


class FakeEvent:
    """An event after which runs take 3, 1 and 2 ms in turns."""

    count = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: FakeEvent) -> float:
        FakeEvent.count += 1
        return (2.0, 3.0, 1.0)[FakeEvent.count % 3]


@pytest.fixture(scope="module")
def written(checkpoints, tmp_path_factory) -> tuple[Path, qdqbert.QuantizeReport]:
    folder = tmp_path_factory.mktemp("tensorrt") / "int8"
    report = qdqbert.quantize(
        str(checkpoints("classifier")), folder, targets=("tensorrt",), calibration_samples=16
    )
    return folder, report


@pytest.fixture
def gpu(monkeypatch) -> list[tuple[Any, ...]]:
    """A fake TensorRT 10 and a fake GPU. Returns the calls of TensorRT."""
    trt, calls = fake_tensorrt()
    # `find_spec` returns this of a loaded module.
    trt.__spec__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: types.SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(build_tensorrt_run, "_DEVICE", "cpu")
    return calls


def test_quantize_checks_the_graph_and_measures_no_latency(written) -> None:
    folder, report = written
    (target,) = report.targets
    assert (target.target, target.engine, target.recipe) == ("tensorrt", "onnxruntime", "linear")
    assert target.lowering.is_exact
    assert target.latency == ()
    assert any("onnxruntime" in each and "proxy" in each for each in report.notices)
    assert not any("differs" in notice or "slower" in notice for notice in report.notices)
    ranges = read_calibration_cache(folder / "calibration.cache")
    assert all(amax > 0 for amax in ranges.values())
    quantization = json.loads((folder / "quantization.json").read_text())
    assert quantization["targets"]["tensorrt"]["rewrites"] == [
        "absorb_zero_points_in_half",
        "to_half_precision",
    ]
    runner = open_runner("onnxruntime", folder / "model.onnx")
    result = runner.run(
        {name: np.full((2, 5), name != "token_type_ids", np.int64) for name in runner.input_names}
    )
    assert result["logits"].dtype == np.float32


def test_a_dry_run_returns_the_command_without_tensorrt(written, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    folder = written[0]
    report = build_tensorrt(folder, batches=[1, 4], sequences=[64], dry_run=True)
    names = ("input_ids", "token_type_ids", "attention_mask")
    assert report.trtexec.startswith(
        f"trtexec --onnx={folder}/model.onnx --stronglyTyped --minShapes="
    )
    for shape in ("1x1", "4x64"):
        assert all(f"{name}:{shape}" in report.trtexec for name in names)
    assert report.trtexec.endswith(f"--saveEngine={folder}/model.engine")
    assert (report.engine, report.timings) == (f"{folder}/model.engine", ())
    assert (report.size_bytes, report.gpu, report.tensorrt) == (None, None, None)
    assert report.model_size_bytes > 0
    assert not (folder / "model.engine").exists()


def test_a_dry_run_is_for_the_named_version(written, gpu) -> None:
    newer = build_tensorrt(written[0], dry_run=True, tensorrt_version="11.2.0")
    assert newer.tensorrt == "11.2.0"
    assert "stronglyTyped" not in newer.trtexec
    assert build_tensorrt(written[0], dry_run=True).tensorrt == "10.13.2.6"
    assert gpu == []


def test_without_tensorrt_the_error_has_hints(written, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingExtraError, match=r"pip install tensorrt.* `dry_run=True`"):
        build_tensorrt(written[0])


def test_without_a_gpu_the_error_has_a_hint(written, monkeypatch, gpu) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserInputError, match=r"no GPU.* `dry_run=True`"):
        build_tensorrt(written[0])
    assert gpu == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": []}, "`batches` must not be empty"),
        ({"batches": [0]}, "`batches` must be at least 1, got 0"),
        ({"runs": 0}, "`runs` must be at least 1, got 0"),
        ({"sequences": [4096]}, "`sequences` contains 4096, which exceeds .* 64 tokens"),
        ({"tensorrt_version": "7.2.3", "dry_run": True}, "7.2.3 is too old"),
        ({"tensorrt_version": "11.2.0"}, "`tensorrt_version='11.2.0'` requires `dry_run=True`"),
    ],
)
def test_what_cannot_be_built_is_refused(written, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        build_tensorrt(written[0], **options)


def test_a_folder_for_another_target_is_refused(quantized) -> None:
    with pytest.raises(UserInputError, match="no graph for TensorRT, only for target portable"):
        build_tensorrt(quantized("classifier").directory)


@pytest.mark.parametrize("version", list(CREATION))
def test_each_version_gets_its_own_flags(version) -> None:
    trt, calls = fake_tensorrt(version)
    assert build_engine(trt, Path("model.onnx"), SHAPES) == b"plan"
    weak = [("config.set_flag", "FP16"), ("config.set_flag", "INT8")]
    names = [call[0] for call in calls]
    assert calls[0] == ("builder.create_network", CREATION[version])
    assert calls[1] == ("parser.parse_from_file", "model.onnx")
    assert [call for call in calls if call[0] == "config.set_flag"] == (
        weak if version == "8.6.1" else []
    )
    profiles = {call[1]: call[2:] for call in calls if call[0] == "profile.set_shape"}
    assert profiles == SHAPES
    assert names.index("config.add_optimization_profile") > names.index("profile.set_shape")
    assert names[-1] == "builder.build_serialized_network"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parses": False}, "10.13.2.6 cannot read 'model.onnx': no such operator"),
        ({"builds": False}, "10.13.2.6 cannot build 'model.onnx'"),
    ],
)
def test_errors_of_tensorrt_are_reported(options, message) -> None:
    trt, _ = fake_tensorrt(**options)
    with pytest.raises(GraphError, match=message):
        build_engine(trt, Path("model.onnx"), SHAPES)


def test_the_engine_is_written_and_timed(written, gpu, tmp_path) -> None:
    path = tmp_path / "a.engine"
    report = build_tensorrt(written[0], path, batches=[1, 2], sequences=[16], runs=3)
    assert path.read_bytes() == b"plan"
    assert list(tmp_path.iterdir()) == [path]
    assert (report.engine, report.size_bytes, report.gpu) == (str(path), 4, "A GPU")
    assert [(each.batch, each.sequence) for each in report.timings] == [(1, 16), (2, 16)]
    assert [(each.median_ms, each.best_ms, each.runs) for each in report.timings] == [(2, 1, 3)] * 2
    # 10 runs warm up.
    shapes = [call[1]["input_ids"] for call in gpu if call[0] == "execute"]
    assert shapes == [(1, 16)] * 13 + [(2, 16)] * 13
    assert {call[2] for call in gpu if call[0] == "execute"} == {7}


def test_an_engine_that_cannot_be_written_leaves_nothing(written, gpu, tmp_path) -> None:
    with pytest.raises(UserInputError, match="cannot be written: No such file"):
        build_tensorrt(written[0], tmp_path / "none" / "a.engine")
    assert not list(tmp_path.iterdir())


def test_the_command_prints_a_table_or_json(written, gpu, tmp_path, capsys) -> None:
    words = ["build-tensorrt", str(written[0]), "-o", str(tmp_path / "a.engine")]
    words += ["--sequence", "16"]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    printed = capsys.readouterr().out
    assert "1 x 16" in printed
    assert "2.000" in printed
    # A shell reads the printed lines as one command.
    command = build_tensorrt(written[0], tmp_path / "a.engine", sequences=[16], dry_run=True)
    lines = printed[printed.index("trtexec \\\n") :].replace("\\\n", "")
    assert shlex.split(lines) == shlex.split(command.trtexec)
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["tensorrt"] == "10.13.2.6"
    assert len(report["timings"]) == 2


def test_the_command_fails_with_one_line(written, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(SystemExit, match="2"):
        main(["build-tensorrt", str(written[0])])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "With `--dry-run`, you get the trtexec command line" in captured.err
