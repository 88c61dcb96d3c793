from __future__ import annotations

import onnx_ir as ir
import pytest

from qdqbert.common.errors import GraphError
from qdqbert.encoders.quantize import Choices
from qdqbert.graphs.targets import tensorrt_rules
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.tensorrt_rules import RULES, check_tensorrt_rules

LEGAL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 4] x) => (float[2, 3] y)
<float[4] one = {1.0, 1.0, 1.0, 1.0}, float s = {0.5}, int8 z = {0},
 int8[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
 float[3] ws = {0.1, 0.2, 0.3}, int8[3] wz = {0, 0, 0}>
{
    [n] a = LayerNormalization (x, one)
    [q] c = QuantizeLinear (a, s, z)
    [d] r = DequantizeLinear (c, s, z)
    [dw] v = DequantizeLinear <axis = 1> (w, ws, wz)
    [mm] y = MatMul (r, v)
}
"""

# rule, what is changed, into what, and what the error names
BROKEN = [
    ("opset_is_read", '"" : 21', '"" : 17', "opset 17; expected 19 to 25"),
    ("opset_is_read", '"" : 21', '"" : 26', "opset 26"),
    (
        "operators_are_standard",
        '"" : 21]',
        '"" : 21, "com.microsoft" : 1]',
        "`mm` is com.microsoft::MatMul",
    ),
    ("zero_points_are_zero", "int8 z = {0}", "int8 z = {3}", "`q` has a zero point"),
    ("zero_points_are_zero", "int8 z = {0}", "uint8 z = {0}", "`q` has a zero point"),
    (
        "zero_points_are_zero",
        "QuantizeLinear (a, s, z)",
        "QuantizeLinear (a, s)",
        "`q` has no zero",
    ),
    ("zero_points_are_zero", "wz = {0, 0, 0}", "wz = {0, 1, 0}", "`dw` has a zero point"),
    ("scales_are_positive", "float s = {0.5}", "float s = {0.0}", "`q` has a scale that is not"),
    ("scales_are_positive", "ws = {0.1, 0.2", "ws = {0.1, -0.2", "`dw` has a scale that is not"),
    ("scales_are_positive", "[q] c", "t = Abs (s) [q] c", "`q` has a scale that is computed"),
    ("scales_fit_their_axis", "<axis = 1> (w", "<axis = 0> (w", "`dw` has scales of shape"),
    ("scales_fit_their_axis", "int8[3] wz = {0, 0, 0}", "int8 wz = {0}", "`dw` has 3 scales and 1"),
    (
        "activations_are_per_tensor",
        "float s = {0.5}, int8 z = {0}",
        "float[4] s = {0.5, 0.5, 0.5, 0.5}, int8[4] z = {0, 0, 0, 0}",
        "`q` quantizes an activation per channel",
    ),
    (
        "weights_are_per_output",
        "<axis = 1> (w, ws, wz)",
        "<axis = 0> (w, rows, rz)",
        "`dw` has scales along axis 0 of a weight that `mm` reads as input 1",
    ),
    ("weights_are_per_output", "MatMul (r, v)", "MatMul (v, r)", "reads as input 0"),
    ("weights_are_stored_as_codes", "(a, s, z)", "(one, s, z)", "`q` quantizes a constant"),
    ("codes_are_int8", "int8[4, 3] w", "int32[4, 3] w", "`dw` dequantizes int32"),
    (
        "codes_are_int8",
        "DequantizeLinear (c,",
        "DequantizeLinear (given,",
        "`d` dequantizes a value",
    ),
    ("pairs_are_whole", "MatMul (r, v)", "MatMul (c, v)", "`q` is read by `mm`"),
    (
        "pairs_are_whole",
        "DequantizeLinear (c, s,",
        "DequantizeLinear (c, t,",
        "`d` reads `q`, and their scales differ",
    ),
    ("matmuls_are_int8_or_float", "MatMul (r, v)", "MatMul (a, v)", "`mm` reads one quantized"),
    ("matmuls_are_int8_or_float", "MatMul (r, v)", "MatMul (r, f)", "`mm` reads one quantized"),
    (
        "norms_read_floats",
        "[dw] v",
        "[sm] p = Softmax (r) [dw] v",
        "`sm` .Softmax. reads a Q/DQ pair",
    ),
    (
        "scales_have_the_type_of_values",
        "[q] c = QuantizeLinear (a, s, z)",
        "[h] b = Cast <to = 10> (a) [q] c = QuantizeLinear (b, s, z)",
        "`q` has values of FLOAT16 and a scale of FLOAT",
    ),
    (
        "floats_are_of_one_type",
        "[dw] v",
        "[h] b = Cast <to = 10> (r) [sum] p = Add (b, a) [dw] v",
        "`sum` .Add. mixes float16 and float32",
    ),
]
# Constants that a change may use.
MORE = (
    "float t = {0.25}, float[4] rows = {0.1, 0.2, 0.3, 0.4}, int8[4] rz = {0, 0, 0, 0}, "
    "float[4, 3] f = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}, float[4] one"
)
FAMILIES = [
    "bert",
    "deberta-v2",
    "distilbert",
    "electra",
    "modernbert",
    "mpnet",
    "roberta",
    "sentence",
]
OTHERS = ["ffn", "linear", "linear+qk", "linear+matmul"]


def legal_graph(old: str = "", new: str = "") -> ir.Model:
    assert old in LEGAL
    text = LEGAL.replace(old, new, 1) if old else LEGAL
    text = text.replace("float[4] one", MORE)
    if "(a, s, z)" in text and "t = Abs (s)" in text:
        text = text.replace("(a, s, z)", "(a, computed, z)").replace("t = Abs", "computed = Abs")
    if "given" in text:
        text = text.replace("float[2, 4] x)", "float[2, 4] x, int8[2, 4] given)")
    if "com.microsoft" in text:
        text = text.replace("[mm] y = MatMul", "[mm] y = com.microsoft.MatMul")
    model = ir.from_onnx_text(text)
    # The parser does not know the types of inner values.
    for node in model.graph:
        for value in node.outputs:
            if value.dtype is None and node.op_type != "QuantizeLinear":
                is_half = node.op_type == "Cast"
                value.dtype = ir.DataType.FLOAT16 if is_half else ir.DataType.FLOAT
    return model


def test_a_legal_graph_passes() -> None:
    check_tensorrt_rules(legal_graph())


@pytest.mark.parametrize(
    ("rule", "old", "new", "message"), BROKEN, ids=[f"{each[0]}: {each[2]}" for each in BROKEN]
)
def test_each_rule_names_the_node_that_breaks_it(rule, old, new, message) -> None:
    model = legal_graph(old, new)
    lines = list(getattr(tensorrt_rules, rule)(model))
    assert lines
    with pytest.raises(GraphError, match=message) as caught:
        check_tensorrt_rules(model)
    assert lines[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule.__name__ for rule in RULES} == {each[0] for each in BROKEN}


def test_all_broken_rules_are_listed_at_once() -> None:
    model = legal_graph("int8 z = {0}", "int8 z = {3}")
    model.opset_imports[""] = 13
    with pytest.raises(GraphError, match=r"in 3 places: \(1\) .*opset 13.*\(2\) `q`.*\(3\) `d`"):
        check_tensorrt_rules(model)


def test_a_transposed_weight_of_gemm_has_its_scales_along_axis_0() -> None:
    text = LEGAL.replace("MatMul (r, v)", "Gemm <transB = 1> (r, v)").replace(
        "int8[4, 3] w", "int8[3, 4] w"
    )
    right = ir.from_onnx_text(text.replace("<axis = 1>", "<axis = 0>"))
    check_tensorrt_rules(right)
    wrong = ir.from_onnx_text(LEGAL.replace("MatMul (r, v)", "Gemm <transB = 1> (r, v)"))
    with pytest.raises(GraphError, match="expected input 1 and its output axis, 0"):
        check_tensorrt_rules(wrong)


# `full` has the sites of all other recipes.
@pytest.mark.parametrize(
    ("name", "recipe"),
    [*((name, "full") for name in FAMILIES), *(("bert", recipe) for recipe in OTHERS)],
)
@pytest.mark.usual("bert-*", "deberta-v2-full")
def test_our_graphs_are_legal(prepared, name, recipe) -> None:
    each = prepared(name)
    plan = each.plan("tensorrt", recipe)
    # `lower` checks, and so would raise; each rule has something to look at.
    model = lower(each.encoder, plan, each.choices(plan))
    check_tensorrt_rules(model)
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph) >= 2 * len(each.layers)


@pytest.mark.parametrize("target", ["portable", "onnxruntime"])
def test_graphs_of_other_targets_are_not(prepared, target) -> None:
    each = prepared("bert")
    plan = each.plan(target, "linear")
    model = lower(each.encoder, plan, Choices(ranges=each.smooth.ranges, scales=each.scales(plan)))
    with pytest.raises(GraphError, match=r"zero point that is not constant|com\.microsoft"):
        check_tensorrt_rules(model)
