from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.encoders.quantize import Choices
from qdqbert.graph.passes.integer_matmul import fuse_integer_matmul
from qdqbert.graph.writer import make_graph

X = np.random.default_rng(0).integers(0, 255, (2, 3)).astype(np.uint8)
# One float32 product and add a value, in another order.
TOLERANCE = 1e-5

CONSTANTS = """
    float x_scale = {0.02}, uint8 x_zero = {128},
    int8[3, 2] w_codes = {1, -2, 3, -4, 127, -127},
    float[2] w_scale = {0.5, 0.25}, int8[2] w_zero = {0, 0},
    float[2] bias = {0.3, -0.7}
"""
DEQUANTIZED = """
    [x] x = DequantizeLinear (codes, x_scale, x_zero)
    [w] w = DequantizeLinear <axis = 1> (w_codes, w_scale, w_zero)
"""


def model_of(
    body: str,
    *,
    outputs: str = "float[2, 2] y",
    inputs: str = "uint8[2, 3] codes",
    constants: str = CONSTANTS,
    dequantized: str = DEQUANTIZED,
) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) '
        f"<{constants}> {{ {dequantized} {body} }}"
    )


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("body", "bias"),
    [
        ("m = MatMul (x, w) y = Add (m, bias)", "bias"),
        ("m = MatMul (x, w) y = Add (bias, m)", "bias"),
        ("y = MatMul (x, w)", None),
    ],
    ids=["bias-after", "bias-before", "no-bias"],
)
def test_a_quantized_linear_layer_becomes_one_node(run_plainly, body, bias) -> None:
    model = model_of(body)
    before = run_plainly(model, {"codes": X})["y"]
    fused = fuse_integer_matmul(model)
    assert ops(fused) == ["MatMulIntegerToFloat"]
    assert [value.name for value in fused.graph[0].inputs[6:]] == ([bias] if bias else [])
    np.testing.assert_allclose(run_plainly(fused, {"codes": X})["y"], before, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("body", "outputs", "after"),
    [
        (
            "m = MatMul (x, w) y = Add (m, bias) z = Neg (m)",
            "float[2, 2] y, float[2, 2] z",
            ["Add", "MatMulIntegerToFloat", "Neg"],
        ),
        (
            "y = MatMul (x, w) z = Add (y, bias)",
            "float[2, 2] y, float[2, 2] z",
            ["Add", "MatMulIntegerToFloat"],
        ),
        ("m = MatMul (x, w) y = Add (m, m)", "float[2, 2] y", ["Add", "MatMulIntegerToFloat"]),
        (
            "b = Neg (bias) m = MatMul (x, w) y = Add (m, b)",
            "float[2, 2] y",
            ["Add", "MatMulIntegerToFloat", "Neg"],
        ),
        (
            "m = MatMul (x, w) y = Sub (m, bias)",
            "float[2, 2] y",
            ["MatMulIntegerToFloat", "Sub"],
        ),
    ],
    ids=[
        "product-read-twice",
        "product-is-an-output",
        "product-added-to-itself",
        "bias-not-constant",
        "not-an-add",
    ],
)
def test_an_add_that_is_not_a_bias_is_not_fused(run_plainly, body, outputs, after) -> None:
    model = model_of(body, outputs=outputs)
    before = run_plainly(model, {"codes": X})
    fused = fuse_integer_matmul(model)
    assert sorted(ops(fused)) == after
    result = run_plainly(fused, {"codes": X})
    for name, expected in before.items():
        np.testing.assert_allclose(result[name], expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "bias",
    ["float[2, 2] bias = {1.0, 2.0, 3.0, 4.0}", "float bias = {1.0}", "float[1] bias = {1.0}"],
    ids=["matrix", "scalar", "one-for-all-columns"],
)
def test_a_bias_of_another_shape_is_not_fused(run_plainly, bias) -> None:
    constants = CONSTANTS.replace("float[2] bias = {0.3, -0.7}", bias)
    model = model_of("m = MatMul (x, w) y = Add (m, bias)", constants=constants)
    before = run_plainly(model, {"codes": X})["y"]
    fused = fuse_integer_matmul(model)
    assert ops(fused) == ["MatMulIntegerToFloat", "Add"]
    np.testing.assert_allclose(run_plainly(fused, {"codes": X})["y"], before, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("dequantized", "constants", "inputs"),
    [
        (
            DEQUANTIZED.replace("<axis = 1> (w_codes", "<axis = 1> (w_given"),
            CONSTANTS,
            "uint8[2, 3] codes, int8[3, 2] w_given",
        ),
        (DEQUANTIZED.replace("x_scale", "s"), CONSTANTS, "uint8[2, 3] codes, float s"),
        (
            DEQUANTIZED,
            CONSTANTS.replace("int8[3, 2] w_codes = {1, -2, 3, -4, 127, -127}", "")
            .replace("int8[2] w_zero", "uint8[3, 2] w_codes = {1, 2, 3, 4, 127, 255}, int8[2] n")
            .replace("{0, 0}", "{0, 0}, uint8[2] w_zero = {5, 6}")
            .replace(",\n    ,", ","),
            "uint8[2, 3] codes",
        ),
        (
            DEQUANTIZED.replace("(codes, x_scale, x_zero)", "<axis = 1> (codes, rows, zeros)"),
            CONSTANTS + ", float[3] rows = {0.1, 0.2, 0.3}, uint8[3] zeros = {1, 2, 3}",
            "uint8[2, 3] codes",
        ),
        (
            "[x] x = Cast <to = 1> (codes) [w] w = DequantizeLinear <axis = 1> "
            "(w_codes, w_scale, w_zero)",
            CONSTANTS,
            "uint8[2, 3] codes",
        ),
    ],
    ids=[
        "weight-not-constant",
        "scale-not-constant",
        "weight-not-int8",
        "input-per-channel",
        "input-in-float",
    ],
)
def test_other_matmuls_are_kept(run_plainly, dequantized, constants, inputs) -> None:
    body = "m = MatMul (x, w) y = Add (m, bias)"
    model = model_of(body, inputs=inputs, constants=constants, dequantized=dequantized)
    given = {
        "codes": X,
        "w_given": np.ones((3, 2), np.int8),
        "s": np.array(0.5, np.float32),
    }
    before, names = run_plainly(model, given)["y"], sorted(ops(model))
    result = fuse_integer_matmul(model)
    assert sorted(ops(result)) == names
    np.testing.assert_array_equal(run_plainly(result, given)["y"], before)


def test_a_weight_with_a_scale_for_each_row_is_kept(run_plainly) -> None:
    # The kernel has one scale for each column. This weight has as many rows as columns.
    constants = (
        "float x_scale = {0.02}, uint8 x_zero = {128}, float[2] w_scale = {0.5, 0.25}, "
        "int8[2, 2] w_codes = {1, -2, 3, 127}, int8[2] w_zero = {0, 0}"
    )
    model = model_of(
        "y = MatMul (x, w)",
        inputs="uint8[2, 2] codes",
        constants=constants,
        dequantized=DEQUANTIZED.replace("<axis = 1>", "<axis = 0>"),
    )
    before = run_plainly(model, {"codes": X[:, :2]})["y"]
    result = run_plainly(fuse_integer_matmul(model), {"codes": X[:, :2]})["y"]
    np.testing.assert_allclose(result, before, atol=TOLERANCE)


def test_pairs_without_zero_points_compute_the_same(run_plainly) -> None:
    # In ONNX, a zero point of 0 may be left out.
    dequantized = DEQUANTIZED.replace(", x_zero)", ")").replace(", w_zero)", ")")
    model = model_of("m = MatMul (x, w) y = Add (m, bias)", dequantized=dequantized)
    before = run_plainly(model, {"codes": X})["y"]
    result = run_plainly(fuse_integer_matmul(model), {"codes": X})["y"]
    np.testing.assert_allclose(result, before, atol=TOLERANCE)


def test_every_linear_layer_of_an_encoder_is_fused(prepared, run_plainly) -> None:
    each = prepared("bert")
    plan = each.plan("onnxruntime")
    model = make_graph(
        each.encoder,
        plan.specs,
        Choices(ranges=each.smooth.ranges, scales=each.scales(plan)),
        plan.target.style,
    )
    inputs = each.batches[0].inputs
    before = run_plainly(model, inputs)["last_hidden_state"]
    counts_before = [ops(model).count(op) for op in ("MatMul", "DequantizeLinear")]
    fused = fuse_integer_matmul(model)
    counts = [ops(fused).count(op) for op in ("MatMulIntegerToFloat", "MatMul", "DequantizeLinear")]
    # Each layer has 6 linear layers and 2 attention matmuls, with 6 weights and 4 inputs.
    assert counts_before == [16, 20]
    assert counts == [12, 4, 0]
    # Sums are int32 instead of float32, so ties may be rounded to the other code.
    error = run_plainly(fused, inputs)["last_hidden_state"] - before
    assert np.sqrt((error**2).mean() / (before**2).mean()) < 0.01
