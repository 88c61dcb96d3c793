from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.graph.passes.residual_sum import sum_residuals
from qdqbert.graph.writer import make_graph

GIVEN = {
    name: np.random.default_rng(seed).normal(size=(2, 4)).astype(np.float32)
    for seed, name in enumerate(("a", "b"))
}


def model_of(body: str, outputs: str = "float[2, 4] y") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[2, 4] a, float[2, 4] b) => '
        f"({outputs}) <float[4] scale = {{1.0, 2.0, 3.0, 4.0}}> {{ {body} }}"
    )


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_an_add_before_a_layer_norm_becomes_a_sum(run_plainly) -> None:
    model = model_of("[n] s = Add (a, b) y = LayerNormalization (s, scale)")
    before = run_plainly(model, GIVEN)["y"]
    rewritten = sum_residuals(model)
    assert ops(rewritten) == ["Sum", "LayerNormalization"]
    np.testing.assert_array_equal(run_plainly(rewritten, GIVEN)["y"], before)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("s = Add (a, b) y = LayerNormalization (s, scale) z = Neg (s)", "float[2, 4] y, "),
        ("z = Add (a, b) y = LayerNormalization (z, scale)", "float[2, 4] y, "),
        ("s = Add (a, scale) y = LayerNormalization (s, scale) z = Neg (b)", "float[2, 4] y, "),
        ("s = Add (a, b) y = Softmax (s) z = Neg (b)", "float[2, 4] y, "),
        ("s = Mul (a, b) y = LayerNormalization (s, scale) z = Neg (b)", "float[2, 4] y, "),
    ],
    ids=["read-twice", "graph-output", "constant-side", "other-reader", "not-an-add"],
)
def test_other_adds_are_kept(run_plainly, body, outputs) -> None:
    model = model_of(body, outputs + "float[2, 4] z")
    before, names = run_plainly(model, GIVEN), ops(model)
    rewritten = sum_residuals(model)
    assert ops(rewritten) == names
    for name, expected in before.items():
        np.testing.assert_array_equal(run_plainly(rewritten, GIVEN)[name], expected)


def test_every_residual_of_an_encoder_becomes_a_sum(prepared, run_plainly) -> None:
    each = prepared("bert")
    model = make_graph(each.encoder)
    inputs = each.batches[0].inputs
    before = run_plainly(model, inputs)["last_hidden_state"]
    adds = ops(model).count("Add")
    rewritten = sum_residuals(model)
    # Two in each layer, and the last add of the embeddings.
    assert ops(rewritten).count("Sum") == 5
    assert ops(rewritten).count("Add") == adds - 5
    np.testing.assert_array_equal(run_plainly(rewritten, inputs)["last_hidden_state"], before)
