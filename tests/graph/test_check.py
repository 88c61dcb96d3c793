from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.errors import GraphError
from qdqbert.graph.check import layer_inputs, save_graph, teacher_forced
from qdqbert.graph.qdq import float_graph

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


def test_an_invalid_graph_is_refused_by_the_name_of_its_file(tmp_path) -> None:
    with pytest.raises(GraphError, match=r"'wrong\.onnx' is invalid"):
        save_graph(ir.from_onnx_text(INVALID), tmp_path / "wrong.onnx")


def test_small_weights_stay_in_the_file(prepared, tmp_path) -> None:
    save_graph(float_graph(prepared("bert").graph), tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_large_weights_go_to_a_file_beside(prepared, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("qdqbert.graph.check._EXTERNAL_OVER_BYTES", 1000)
    save_graph(float_graph(prepared("bert").graph), tmp_path / "model.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}


def test_a_forced_graph_takes_inner_values_and_returns_its_own(run_plainly) -> None:
    model = ir.from_onnx_text(CHAIN)
    forced = teacher_forced(model, ["a", "b"])
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in forced.graph.inputs] == ["x", "a.forced", "b.forced"]
    given = {
        name: np.full((1, 1, 2), value, np.float32)
        for name, value in (("x", -1), ("a.forced", 10), ("b.forced", 3))
    }
    result = run_plainly(forced, given)
    # a = |x| of the true input; b = -a of the forced one; y = b * b of the forced one.
    assert {name: array.flat[0] for name, array in result.items()} == {"a": 1, "b": -10, "y": 9}


def test_layer_inputs_are_found_in_the_order_of_the_layers(prepared) -> None:
    each = prepared("bert")
    names = layer_inputs(each.sited, each.graph, each.layers)
    assert len(set(names)) == 2
    made = [value.name for node in each.graph.graph for value in node.outputs]
    assert made.index(names[0]) < made.index(names[1])
    by_name = {value.name: value for node in each.graph.graph for value in node.outputs}
    assert {by_name[name].producer().op_type for name in names} == {"LayerNormalization"}


def test_a_layer_that_normalises_first_is_entered_before_its_norm(prepared) -> None:
    each = prepared("modernbert")
    names = layer_inputs(each.sited, each.graph, each.layers)
    by_name = {value.name: value for node in each.graph.graph for value in node.outputs}
    assert [by_name[name].producer().op_type for name in names] == ["LayerNormalization", "Add"]
