from __future__ import annotations

import importlib.util
import os

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.engines.registry import check_engine, is_installed, open_runner
from qdqbert.graphs.check import save_graph

SUM_AND_DIFFERENCE = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] a, int64[batch, sequence] b)
    => (float[batch, sequence] sum, float[batch, sequence] difference)
{
    x = Cast <to = 1> (a)
    y = Cast <to = 1> (b)
    sum = Add (x, y)
    difference = Sub (x, y)
}
"""


@pytest.fixture
def model(tmp_path):
    save_graph(ir.from_onnx_text(SUM_AND_DIFFERENCE), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("shape", [(1, 1), (3, 2)], ids=str)
def test_a_runner_maps_inputs_by_name_to_outputs_by_name(model, engine, shape) -> None:
    runner = open_runner(engine, model, threads=1)
    assert set(runner.input_names) == {"a", "b"}
    assert runner.output_names == ("sum", "difference")
    outputs = runner.run({"b": np.full(shape, 2), "a": np.full(shape, 5)})
    assert {name: array.dtype for name, array in outputs.items()} == {
        "sum": np.float32,
        "difference": np.float32,
    }
    np.testing.assert_array_equal(outputs["sum"], np.full(shape, 7))
    np.testing.assert_array_equal(outputs["difference"], np.full(shape, 3))


def test_outputs_that_are_not_wanted_are_left_out(model, engine) -> None:
    inputs = {"a": np.full((1, 2), 5), "b": np.full((1, 2), 2)}
    found = open_runner(engine, model).run(inputs, ["difference"])
    assert found.keys() == {"difference"}
    np.testing.assert_array_equal(found["difference"], [[3, 3]])


def test_outputs_are_not_overwritten_by_the_next_call(model, engine) -> None:
    runner = open_runner(engine, model)
    first = runner.run({"a": np.full((1, 2), 5), "b": np.full((1, 2), 2)})["sum"]
    runner.run({"a": np.full((1, 2), 50), "b": np.full((1, 2), 20)})
    np.testing.assert_array_equal(first, [[7, 7]])


def test_a_float_precision_can_be_asked_for(model, engine) -> None:
    runner = open_runner(engine, model, precision="f32", exact=True)
    assert runner.precision in ("float32", "f32")


@pytest.mark.openvino
@pytest.mark.parametrize("low_memory", [True, False])
def test_openvino_keeps_kernels_of_shapes_unless_memory_is_low(
    model, monkeypatch, low_memory
) -> None:
    module = pytest.importorskip("qdqbert.engines.openvino")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    compile_model = module.openvino.Core.compile_model
    seen = []

    def record(core, path, device, settings):
        kept = settings.get("CPU_RUNTIME_CACHE_CAPACITY")
        seen.append((kept, os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY")))
        return compile_model(core, path, device, settings)

    monkeypatch.setattr(module.openvino.Core, "compile_model", record)
    runner = open_runner("openvino", model, low_memory=low_memory)
    assert seen == [(0, "64") if low_memory else (None, None)]
    assert "ONEDNN_PRIMITIVE_CACHE_CAPACITY" not in os.environ
    for size in (1, 3):
        shape = (size, size)
        outputs = runner.run({"a": np.full(shape, 5), "b": np.full(shape, 2)})
        np.testing.assert_array_equal(outputs["sum"], np.full(shape, 7))


@pytest.mark.openvino
def test_threads_are_bound_to_cores_only_if_all_are_used(model, monkeypatch) -> None:
    module = pytest.importorskip("qdqbert.engines.openvino")
    seen = []
    compile_model = module.openvino.Core.compile_model

    def record(core, model, device, settings):
        seen.append(settings["ENABLE_CPU_PINNING"])
        return compile_model(core, model, device, settings)

    monkeypatch.setattr(module.openvino.Core, "compile_model", record)
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    for threads in (1, 2):
        open_runner("openvino", model, threads=threads)
    assert seen == [False, True]


def test_an_unknown_engine_lists_the_known_ones(model) -> None:
    with pytest.raises(UserInputError, match=r"Engine 'tpu' is unknown\. Known: onnxruntime, o"):
        open_runner("tpu", model)


def test_a_missing_engine_has_the_command_that_installs_it(monkeypatch) -> None:
    assert is_installed("onnxruntime")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not is_installed("openvino")
    for name in ("openvino", "onnxruntime"):
        with pytest.raises(MissingExtraError, match=rf"pip install 'qdqbert\[{name}\]'$"):
            check_engine(name)
    # It is a dependency of the package, so no extra installs it.
    with pytest.raises(MissingExtraError, match=r"pip install llvmlite$"):
        check_engine("native")


def test_a_kernel_of_another_engine_is_refused(model) -> None:
    message = "`kernel='avx2'` is a kernel of the native engine; engine 'onnxruntime' has none"
    with pytest.raises(UserInputError, match=message) as caught:
        open_runner("onnxruntime", model, kernel="avx2")
    assert caught.value.argument == "kernel"


def test_the_native_engine_runs_no_onnx_files(model) -> None:
    message = (
        r"does not run \.onnx files. It runs folders that `quantize` wrote with 'native' among"
    )
    with pytest.raises(UserInputError, match=message) as caught:
        open_runner("native", model)
    assert caught.value.argument == "engine"


def test_a_provider_of_another_engine_is_refused(model, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    message = "`provider='cuda'` is an execution provider of ONNX Runtime; engine 'openvino' has"
    with pytest.raises(UserInputError, match=message):
        open_runner("openvino", model, provider="cuda")


@pytest.mark.openvino
def test_an_output_that_a_cast_named_keeps_the_graphs_name(tmp_path) -> None:
    pytest.importorskip("openvino")
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[1, 4] x) => (float[1, 4] logits) {
            a = Abs (x)
            b = Identity (a)
            logits = Cast <to = 1> (b)
        }
    """
    ir.save(ir.from_onnx_text(text), tmp_path / "model.onnx")
    runner = open_runner("openvino", tmp_path / "model.onnx")
    x = np.array([[1, -2, 3, -4]], dtype=np.float32)
    outputs = runner.run({"x": x})
    assert list(outputs) == ["logits"]
    np.testing.assert_array_equal(outputs["logits"], np.abs(x))
