"""Other tools that quantize, in processes of their own."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest

from qdqbert.engines.runner import open_runner
from qdqbert.errors import QdqBertError
from qdqbert.evidence.rivals import RIVALS, run_rival

SEED = np.random.default_rng(0)
WEIGHT = SEED.normal(size=(32, 16)).astype(np.float32)
# Without neighbors, no sum of two products saturates in ONNX Runtime on CPUs without VNNI.
WEIGHT[1::2] = 0
GRAPH = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[batch, sequence, 32] x, float[32, 16] weight) => (float[batch, sequence, 16] y)
{
    y = MatMul (x, weight)
}
"""
INPUTS = [{"x": SEED.normal(size=(1, 5, 32)).astype(np.float32)} for _ in range(10)]


@pytest.fixture
def float_model(tmp_path):
    """A graph with one linear layer."""
    model = onnx.parser.parse_model(GRAPH)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "weight"))
    path = tmp_path / "float.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_makes_an_int8_graph_that_is_close_to_float(float_model, tmp_path, name) -> None:
    rival = RIVALS[name]
    if not rival.is_installed:
        pytest.skip(f"{name} is not installed")
    model = run_rival(rival, float_model, tmp_path, INPUTS)
    assert model == tmp_path / rival.file
    runner = open_runner(rival.engine, model)
    for each in INPUTS:
        (found,) = runner.run(each).values()
        expected = each["x"].astype(np.float64) @ WEIGHT.astype(np.float64)
        noise = np.square(found - expected).sum() / np.square(expected).sum()
        # Exact results would mean that nothing was quantized.
        assert 1e-6 < noise < 1e-3


def test_dynamic_quantization_computes_ranges_at_run_time(float_model, tmp_path) -> None:
    model = run_rival(RIVALS["ONNX Runtime quantize_dynamic"], float_model, tmp_path, INPUTS)
    operators = {node.op_type for node in onnx.load(model).graph.node}
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= operators


def test_the_failure_of_a_rival_has_its_last_line(tmp_path) -> None:
    with pytest.raises(QdqBertError, match=r"quantize_dynamic could not.*missing\.onnx"):
        run_rival(
            RIVALS["ONNX Runtime quantize_dynamic"], tmp_path / "missing.onnx", tmp_path, INPUTS
        )


def test_a_rival_is_installed_if_all_of_its_packages_are() -> None:
    for rival in RIVALS.values():
        found = [importlib.util.find_spec(each) is not None for each in rival.packages]
        assert rival.is_installed is all(found)
