from __future__ import annotations

import collections
import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.common.errors import GraphError
from qdqbert.encoders.heads import scores
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graphs.edit import constant_array
from qdqbert.graphs.half_precision import to_half_precision
from qdqbert.graphs.writer import make_graph

FAMILIES = [
    "bert",
    pytest.param("deberta-v2", marks=pytest.mark.slow),
    "distilbert",
    "electra",
    "modernbert",
    "mpnet",
    "roberta",
]
RNG = np.random.default_rng(0)


def model_of(
    body: str,
    *,
    inputs: str = "float[2, 4] x",
    outputs: str = "float[2, 4] y",
    constants: str = "",
) -> ir.Model:
    held = f"<{constants}>" if constants else ""
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {held} {{ {body} }}'
    )


def ops(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def types_of(model: ir.Model) -> dict[str, ir.DataType | None]:
    """Return the type of the first output of each node, by the type of the node."""
    return {node.op_type: node.outputs[0].dtype for node in model.graph if node.op_type != "Cast"}


def test_floats_become_float16_and_outputs_float32(run_plainly) -> None:
    weight, bias = (RNG.normal(size=size).astype(np.float32) for size in ((4, 4), (4,)))
    written = [", ".join(map(repr, array.ravel().tolist())) for array in (weight, bias)]
    model = model_of(
        "t = Cast <to = 1> (i) h = MatMul (t, w) s = Add (h, b) y = LayerNormalization (s, b)",
        inputs="int64[2, 4] i",
        constants=f"float[4, 4] w = {{{written[0]}}}, float[4] b = {{{written[1]}}}",
    )
    before = ops(model)

    half = to_half_precision(model)

    assert ops(half) - before == {"Cast": 1}
    assert set(types_of(half).values()) == {ir.DataType.FLOAT16}
    assert {value.dtype for value in half.graph.initializers.values()} == {ir.DataType.FLOAT16}
    assert half.graph.inputs[0].dtype == ir.DataType.INT64
    assert [(value.name, value.dtype) for value in half.graph.outputs] == [("y", ir.DataType.FLOAT)]
    codes = RNG.integers(-3, 4, size=(2, 4))
    sums = codes.astype(np.float64) @ weight.astype(np.float64) + bias
    centered = sums - sums.mean(axis=1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5) * bias
    np.testing.assert_allclose(run_plainly(half, {"i": codes})["y"], expected, atol=0.02)


def test_a_fully_masked_row_has_no_nan(run_plainly) -> None:
    model = model_of(
        "[m] p = Equal (mask, zero) a = Where (p, low, none) s = Add (x, a) y = Softmax (s)",
        inputs="float[2, 4] x, int64[2, 4] mask",
        constants="int64 zero = {0}, float low = {-3.4028234663852886e38}, float none = {0.0}",
    )
    half = to_half_precision(model)
    low = constant_array(half.graph.initializers["low"])
    assert (low, low.dtype) == (-32768, np.float16)
    # With scores this low, a mask of -65504 would become -inf.
    x = np.full((2, 4), -60, np.float32)
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    result = run_plainly(half, {"x": x, "mask": mask})["y"]
    np.testing.assert_allclose(result, [[0.5, 0.5, 0, 0], [0.25] * 4], atol=1e-3)


POOLING = """
    h = Mul (x, w) m = Cast <to = 1> (mask) masked = Mul (h, m) total = ReduceSum (masked, axes)
    tokens = ReduceSum (m, axes) count = Clip (tokens, least) pooled = Div (total, count)
"""


def pooling_model() -> ir.Model:
    return model_of(
        POOLING,
        inputs="float[2, 3, 4] x, int64[2, 3, 1] mask",
        outputs="float[2, 3, 4] h, float[2, 1, 4] pooled",
        constants="float w = {0.5}, int64[1] axes = {1}, float least = {1e-9}",
    )


def test_pooling_stays_in_float32(run_plainly) -> None:
    half = to_half_precision(pooling_model())
    kinds = types_of(half)
    assert kinds["ReduceSum"] == kinds["Clip"] == kinds["Div"] == ir.DataType.FLOAT
    assert constant_array(half.graph.initializers["least"]).dtype == np.float32
    assert constant_array(half.graph.initializers["w"]).dtype == np.float16
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    mask = np.array([[[1], [1], [0]], [[0], [0], [0]]])
    result = run_plainly(half, {"x": x, "mask": mask})
    states = (x.astype(np.float16) / 2).astype(np.float64)
    np.testing.assert_allclose(result["h"], states, rtol=1e-3)
    np.testing.assert_allclose(result["pooled"][0], states[0, :2].mean(0, keepdims=True), rtol=2e-3)
    np.testing.assert_array_equal(result["pooled"][1], 0)  # no tokens: neither NaN nor infinite


def test_lengths_of_vectors_stay_in_float32(run_plainly) -> None:
    half = to_half_precision(
        model_of(
            "s = Add (x, x) n = ReduceL2 (s, a) m = Max (n, c) y = Div (s, m)",
            constants="int64[1] a = {-1}, float c = {1e-12}",
        )
    )
    floats = dict.fromkeys(("ReduceL2", "Max", "Div"), ir.DataType.FLOAT)
    assert types_of(half) == {"Add": ir.DataType.FLOAT16, **floats}
    x = np.array([[3, 4, 0, 0], [0, 0, 0, 0]], np.float32)
    np.testing.assert_allclose(run_plainly(half, {"x": x})["y"], x / 5, atol=1e-3)


def test_an_unknown_head_stays_in_float32() -> None:
    model = model_of(
        "y = Mul (x, w) z = Mul (x, w)",
        outputs="float[2, 4] y, float[2, 4] z",
        constants="float w = {3.0}",
    )
    list(model.graph)[1].name = "tail.0"
    half = to_half_precision(model)
    # A constant with readers of both types has both types.
    kinds = {constant_array(value).dtype for value in half.graph.initializers.values()}
    assert kinds == {np.dtype(np.float16), np.dtype(np.float32)}
    types = [node.outputs[0].dtype for node in half.graph if node.op_type == "Mul"]
    assert types == [ir.DataType.FLOAT16, ir.DataType.FLOAT]


SCALED = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"


@pytest.mark.parametrize(
    ("body", "constants", "message"),
    [
        ("y = Mul (x, c)", "float c = {70000.0}", "`c` contains 7e.04, and float16"),
        ("y = Mul (x, c)", "float[2] c = {1.0, -1e6}", "`c` contains -1e.06, and float16"),
        ("y = Max (x, c)", "float c = {1e-9}", "`c` is 1e-09, which becomes 0 in float16"),
        (SCALED, "float s = {1e-8}, int8 z = {0}", "Scale `s` is 1e-08, .* held as 0|`s` is 1e-08"),
        (SCALED, "float s = {4.5e-7}, int8 z = {0}", "`s` is 4.5e-07, .* above 1%"),
    ],
    ids=["too-large", "too-low", "too-small", "scale-is-0", "scale-is-subnormal"],
)
def test_what_float16_cannot_represent_is_named(body, constants, message) -> None:
    inputs = "float[2, 2] x" if "float[2]" in constants else "float[2, 4] x"
    outputs = inputs.replace("x", "y")
    with pytest.raises(GraphError, match=message):
        to_half_precision(model_of(body, inputs=inputs, outputs=outputs, constants=constants))


def test_a_scale_with_a_small_error_in_float16_is_converted(run_plainly) -> None:
    half = to_half_precision(model_of(SCALED, constants="float s = {0.011}, int8 z = {0}"))
    x = RNG.uniform(-1, 1, size=(2, 4)).astype(np.float32)
    step = float(np.float16(0.011))
    codes = np.rint(x.astype(np.float16).astype(np.float64) / step)
    np.testing.assert_allclose(run_plainly(half, {"x": x})["y"], codes * step, rtol=1e-3)


def test_infinite_and_integer_constants_are_kept() -> None:
    model = model_of(
        "a = Min (x, inf) y = Reshape (a, shape)",
        constants="float inf = {1.0}, int64[2] shape = {2, 4}",
    )
    model.graph.initializers["inf"].const_value = ir.tensor(np.float32(np.inf), name="inf")
    half = to_half_precision(model)
    assert np.isposinf(constant_array(half.graph.initializers["inf"]))
    assert constant_array(half.graph.initializers["shape"]).dtype == np.int64


def test_a_node_that_contains_a_graph_is_refused() -> None:
    model = model_of(
        "y = If <then_branch = g1 () => (float[2, 4] a) { a = Abs (x) }, "
        "else_branch = g2 () => (float[2, 4] b) { b = Neg (x) }> (c)",
        inputs="float[2, 4] x, bool c",
    )
    with pytest.raises(GraphError, match=r"\(If\) contains a graph"):
        to_half_precision(model)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_computes_the_same(prepared, run_plainly, name) -> None:
    each = prepared(name)
    inputs = each.batches[1].inputs
    whole = make_graph(each.encoder)
    before = ops(whole)
    expected = run_plainly(whole, inputs)["last_hidden_state"]
    half = to_half_precision(whole.clone())
    assert set(ops(half) - before) <= {"Cast"}
    assert not before - ops(half)
    text = inputs["attention_mask"].astype(bool)
    result = run_plainly(half, inputs)["last_hidden_state"]
    assert result.dtype == np.float32
    # 11 bits give 66 dB, and a dozen consecutive roundings cost some of it.
    assert sqnr_db(expected[text], result[text]) >= 55
    # The original graph is unchanged.
    np.testing.assert_array_equal(run_plainly(whole, inputs)["last_hidden_state"], expected)


def test_scores_of_pooled_states_are_computed_in_float32(prepared, run_plainly) -> None:
    each = prepared("sentence")
    heads = scores(("mean", "weightedmean"), ("normalize",))
    model = dataclasses.replace(each.encoder, heads=heads)
    inputs = each.batches[0].inputs
    expected = run_plainly(make_graph(model), inputs)["logits"]
    half = to_half_precision(make_graph(model))
    sums = [node for node in half.graph if node.op_type == "ReduceSum"]
    assert len(sums) == 4
    # Neither sums nor their weights, which are as large as a text is long.
    assert {value.dtype for node in sums for value in node.inputs[:1]} == {ir.DataType.FLOAT}
    weights = [node for node in half.graph if node.op_type == "CumSum"]
    assert weights[0].outputs[0].dtype == ir.DataType.INT64
    layers = [node for node in half.graph if node.op_type == "MatMul"]
    assert {node.outputs[0].dtype for node in layers} == {ir.DataType.FLOAT16}
    np.testing.assert_allclose(run_plainly(half, inputs)["logits"], expected, atol=2e-3)


def test_embeddings_of_sentences_are_pooled_in_float32(prepared, run_plainly) -> None:
    each = prepared("sentence")
    inputs = each.batches[0].inputs
    expected = run_plainly(make_graph(each.encoder), inputs)["sentence_embedding"]
    half = to_half_precision(make_graph(each.encoder))
    limits = [node for node in half.graph if node.op_type == "Max"]
    assert len(limits) == 2
    assert {node.outputs[0].dtype for node in limits} == {ir.DataType.FLOAT}
    result = run_plainly(half, inputs)["sentence_embedding"]
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(result, expected, atol=2e-3)
