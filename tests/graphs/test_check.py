from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.common.errors import GraphError
from qdqbert.graphs.check import add_teacher_forcing, save_graph
from qdqbert.graphs.writer import make_graph

INVALID = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2] x) => (float[2] y) { y = Reshape (x) }
"""
CHAIN = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 1, 2] x) => (float[1, 1, 2] y)
<float[1, 1, 2] a, float[1, 1, 2] b>
{
    a = Abs (x)
    b = Neg (a)
    y = Mul (b, b)
}
"""


def test_the_error_for_an_invalid_graph_names_its_file(tmp_path) -> None:
    with pytest.raises(GraphError, match=r"'wrong\.onnx' is invalid"):
        save_graph(ir.from_onnx_text(INVALID), tmp_path / "wrong.onnx")


def test_small_weights_are_saved_in_the_onnx_file(prepared, tmp_path) -> None:
    save_graph(make_graph(prepared("bert").encoder), tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_large_weights_are_saved_in_a_second_file(prepared, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("qdqbert.graphs.check._EXTERNAL_OVER_BYTES", 1000)
    save_graph(make_graph(prepared("bert").encoder), tmp_path / "model.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}


def test_teacher_forcing_takes_inner_values_as_inputs_and_returns_the_computed_ones(
    run_plainly,
) -> None:
    model = ir.from_onnx_text(CHAIN)
    forced = add_teacher_forcing(model, ["a", "b"])
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in forced.graph.inputs] == ["x", "a.forced", "b.forced"]
    given = {
        name: np.full((1, 1, 2), value, np.float32)
        for name, value in (("x", -1), ("a.forced", 10), ("b.forced", 3))
    }
    result = run_plainly(forced, given)
    # a = |x|. b = -a with the forced a. y = b * b with the forced b.
    assert {name: array.flat[0] for name, array in result.items()} == {"a": 1, "b": -10, "y": 9}
