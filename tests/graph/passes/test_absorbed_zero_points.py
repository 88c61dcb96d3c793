from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.encoders.quantize import Choices
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graph.edit import constant_array
from qdqbert.graph.passes.absorbed_zero_points import (
    absorb_zero_points,
    absorb_zero_points_in_half,
)
from qdqbert.graph.writer import make_graph
from qdqbert.recipes import QuantizerOptions

# Beyond both ends of the codes, and all between; no value is near a tie.
STEPS = np.random.default_rng(0).uniform(-0.4, 0.4, (5, 60)) + np.arange(-20, 280).reshape(5, 60)
X = (STEPS.reshape(100, 3) / 64).astype(np.float32)
# Sums of float32 in another order; one code more or less is 0.004 or more.
TOLERANCE = 1e-4

CONSTANTS = """
    float s = {0.015625}, uint8 z = {8}, int8 z8 = {-120}, uint8 middle = {128}, int8 zero8 = {0},
    int8[3, 2] codes = {1, -2, 3, -4, 127, -127},
    float[2] ws = {0.5, 0.25}, int8[2] wz = {0, 0},
    float[3] ws3 = {0.5, 0.25, 1.0}, int8[3] wz3 = {0, 0, 0},
    float[2] bias = {0.3, -0.7}, float[3, 2] plain = {1.0, -2.0, 0.5, 3.0, -1.0, 2.0}
"""
WEIGHT = "[w] w = DequantizeLinear <axis = 1> (codes, ws, wz)"


def model_of(body: str, outputs: str = "float[100, 2] y") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[100, 3] x) => ({outputs}) '
        f"<{CONSTANTS}> {{ {body} }}"
    )


def pair(zero: str) -> str:
    return (
        f"[quantize] q = QuantizeLinear (x, s, {zero}) "
        f"[dequantize] d = DequantizeLinear (q, s, {zero})"
    )


def ops(model: ir.Model) -> list[str]:
    return sorted(node.op_type for node in model.graph)


def zero_points(model: ir.Model) -> list[np.ndarray]:
    return [
        constant_array(node.inputs[2])
        for node in model.graph
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]


@pytest.mark.parametrize("zero", ["z", "z8", "middle"])
@pytest.mark.parametrize(
    ("body", "adds"),
    [
        (f"{WEIGHT} m = MatMul (d, w) y = Add (m, bias)", 2),
        (f"{WEIGHT} m = MatMul (d, w) y = Add (bias, m)", 2),
        (f"{WEIGHT} y = MatMul (d, w)", 2),
        ("m = MatMul (d, plain) y = Add (m, bias)", 2),
        (f"{WEIGHT} m = MatMul (d, w) y = Add (m, m)", 3),
    ],
    ids=["bias-after", "bias-before", "no-bias", "float-weight", "read-twice"],
)
def test_codes_become_symmetric_and_results_stay_the_same(run_plainly, zero, body, adds) -> None:
    model = model_of(f"{pair(zero)} {body}")
    before, there = run_plainly(model, {"x": X})["y"], ops(model).count("Add")
    absorbed = absorb_zero_points(model)
    assert ops(absorbed).count("Add") == (there if zero == "middle" else adds)
    for array in zero_points(absorbed):
        assert array.dtype == np.int8
        assert not array.any()
    np.testing.assert_allclose(run_plainly(absorbed, {"x": X})["y"], before, atol=TOLERANCE)


def test_each_reader_of_a_pair_is_corrected(run_plainly) -> None:
    model = model_of(
        f"{pair('z')} {WEIGHT} m = MatMul (d, w) y = Add (m, bias) "
        "n = MatMul (d, plain) k = Add (n, bias)",
        "float[100, 2] y, float[100, 2] k",
    )
    before = run_plainly(model, {"x": X})
    absorbed = absorb_zero_points(model)
    assert ops(absorbed).count("QuantizeLinear") == 1
    for name, expected in before.items():
        after = run_plainly(absorbed, {"x": X})[name]
        np.testing.assert_allclose(after, expected, atol=TOLERANCE)


def test_float16_represents_the_shift_exactly() -> None:
    model = model_of(f"{pair('z')} {WEIGHT} y = MatMul (d, w)")
    model.graph.initializers["s"].const_value = ir.tensor(np.float32(0.0217), name="s")
    absorbed = absorb_zero_points_in_half(model)
    (shift,) = (
        constant_array(node.inputs[1]) for node in absorbed.graph if node.name == "quantize.shift"
    )
    assert shift == np.float16(shift)
    assert shift == pytest.approx(0.0217 * (8 - 128), rel=2**-11)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (f"{WEIGHT} m = Softmax (d) y = MatMul (m, w)", "float[100, 2] y"),
        ("t = Transpose (d) y = MatMul (t, d)", "float[3, 3] y"),
        (f"{WEIGHT} y = MatMul (d, w) z0 = Neg (d)", "float[100, 2] y, float[100, 3] z0"),
    ],
    ids=["another-node", "a-product-of-two", "a-linear-and-another"],
)
def test_a_zero_point_that_no_bias_can_take_is_kept(run_plainly, body, outputs) -> None:
    model = model_of(f"{pair('z')} {body}", outputs)
    before, names = run_plainly(model, {"x": X}), ops(model)
    absorbed = absorb_zero_points(model)
    assert ops(absorbed) == names
    for name, expected in run_plainly(absorbed, {"x": X}).items():
        np.testing.assert_array_equal(expected, before[name])


@pytest.mark.parametrize("bits", [4, 7])
def test_fewer_bits_need_no_shift(prepared, run_plainly, bits) -> None:
    each = prepared("bert")
    plan = each.plan("portable", "linear")
    specs = QuantizerOptions(aprec=bits).apply(plan.specs, each.sited.sites)
    chosen = each.calibration(plan)
    model = make_graph(each.encoder, specs, Choices(ranges=chosen.ranges, scales=each.scales(plan)))
    inputs = each.batches[0].inputs
    before, adds = run_plainly(model, inputs)["last_hidden_state"], ops(model).count("Add")
    absorbed = absorb_zero_points(model)
    assert ops(absorbed).count("Add") == adds
    for array in zero_points(absorbed):
        assert array.dtype == np.int8
        assert not array.any()
    np.testing.assert_array_equal(run_plainly(absorbed, inputs)["last_hidden_state"], before)


def test_scales_along_the_inputs_of_a_weight_are_kept(run_plainly) -> None:
    body = "[w] w = DequantizeLinear <axis = 0> (codes, ws3, wz3) y = MatMul (d, w)"
    model = model_of(f"{pair('z')} {body}")
    names = ops(model)
    assert ops(absorb_zero_points(model)) == names


def test_a_pair_that_is_an_output_is_kept(run_plainly) -> None:
    model = model_of(f"{pair('z')} {WEIGHT} y = MatMul (d, w)", "float[100, 2] y, float[100, 3] d")
    before, names = run_plainly(model, {"x": X}), ops(model)
    absorbed = absorb_zero_points(model)
    assert ops(absorbed) == names
    np.testing.assert_array_equal(run_plainly(absorbed, {"x": X})["d"], before["d"])


def test_symmetric_pairs_are_kept(run_plainly) -> None:
    model = model_of(f"{pair('wz0')} {WEIGHT} y = MatMul (d, w)".replace("wz0", "zero8"))
    names = [node.name for node in model.graph]
    assert [node.name for node in absorb_zero_points(model).graph] == names
    assert run_plainly(model, {"x": X})["y"].shape == (100, 2)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_affine_layers_of_an_encoder_compute_the_same(prepared, run_plainly, name) -> None:
    each = prepared(name)
    plan = each.plan("portable", "linear")
    chosen = each.calibration(plan)
    model = make_graph(
        each.encoder, plan.specs, Choices(ranges=chosen.ranges, scales=each.scales(plan))
    )
    inputs = each.batches[0].inputs
    before = run_plainly(model, inputs)["last_hidden_state"]
    pairs = ops(model).count("QuantizeLinear")
    absorbed = absorb_zero_points(model)
    assert ops(absorbed).count("QuantizeLinear") == pairs > 0
    activations = [node for node in absorbed.graph if node.op_type == "QuantizeLinear"]
    assert all(not constant_array(node.inputs[2]).any() for node in activations)
    after = run_plainly(absorbed, inputs)["last_hidden_state"]
    # Few values are so close to a tie that float32 decides. A wrong bias gives less than 10 dB.
    assert sqnr_db(before, after) > 40
