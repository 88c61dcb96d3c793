from __future__ import annotations

import collections

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.imported.fused_operators import decompose_fused_operators

BATCH, TOKENS, HEADS, HIDDEN = 3, 5, 2, 8
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(BATCH, TOKENS, HIDDEN)).astype(np.float32)
OTHER = RNG.normal(size=(BATCH, TOKENS, HIDDEN)).astype(np.float32)
THIRD = RNG.normal(size=(BATCH, TOKENS, HIDDEN)).astype(np.float32)
MASK = np.array([[1] * 5, [1] * 3 + [0] * 2, [1] + [0] * 4], np.int32)
STATE = f"float[{BATCH}, {TOKENS}, {HIDDEN}]"
PAD = f"int32[{BATCH}, {TOKENS}]"


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def model_of(
    body: str, inputs: str, outputs: str = f"{STATE} y", *, opset: int = 21, **constants: np.ndarray
) -> ir.Model:
    held = ", ".join(
        f"float[{', '.join(map(str, array.shape))}] {name} = "
        f"{{{', '.join(repr(float(each)) for each in array.ravel())}}}"
        for name, array in constants.items()
    )
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> '
        f"g ({inputs}) => ({outputs}) <{held}> {{ {body} }}"
    )


def ops(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def agrees(before: ir.Model, run, inputs: dict[str, np.ndarray], *, atol: float = 1e-5) -> ir.Model:
    """Return the decomposed graph, which returns what onnxruntime's own operator returns."""
    after = decompose_fused_operators(before.clone())
    assert {node.domain for node in after.graph} <= {""}
    assert [value.name for value in after.graph.outputs] == [
        value.name for value in before.graph.outputs
    ]
    expected, result = run(before, inputs), run(after, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, atol=atol, rtol=1e-4)
    return after


def test_bias_gelu(run_plainly) -> None:
    model = model_of("y = com.microsoft.BiasGelu (x, b)", f"{STATE} x", b=random(HIDDEN))
    after = agrees(model, run_plainly, {"x": STATES})
    assert ops(after) == {"Add": 1, "Gelu": 1}


def test_gelu(run_plainly) -> None:
    model = model_of("y = com.microsoft.Gelu (x)", f"{STATE} x")
    assert ops(agrees(model, run_plainly, {"x": STATES})) == {"Gelu": 1}


def test_fast_gelu_with_a_bias_and_without(run_plainly) -> None:
    with_bias = model_of("y = com.microsoft.FastGelu (x, b)", f"{STATE} x", b=random(HIDDEN))
    after = agrees(with_bias, run_plainly, {"x": STATES})
    assert ops(after) == {"Add": 1, "Gelu": 1}
    alone = model_of("y = com.microsoft.FastGelu (x)", f"{STATE} x")
    after = agrees(alone, run_plainly, {"x": STATES})
    assert ops(after) == {"Gelu": 1}


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ("x, s, g", ""),
        ("x, s, g, b", ""),
        ("x, s, g, b, c", "<epsilon = 1e-3>"),
        ('x, s, g, "", c', "<epsilon = 1e-5>"),
    ],
    ids=["scale", "shift", "bias", "bias-without-shift"],
)
def test_skip_layer_normalization(run_plainly, inputs, attributes) -> None:
    model = model_of(
        f"y = com.microsoft.SkipLayerNormalization {attributes} ({inputs})",
        f"{STATE} x, {STATE} s",
        **{name: random(HIDDEN) for name in "gbc" if name in inputs},
    )
    after = agrees(model, run_plainly, {"x": STATES, "s": OTHER})
    assert ops(after) == {"Add": inputs.count("c") + 1, "LayerNormalization": 1}


def test_skip_layer_normalization_gives_its_sum_too(run_plainly) -> None:
    model = model_of(
        'y, "", "", z = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> (x, s, g, b, c)',
        f"{STATE} x, {STATE} s",
        f"{STATE} y, {STATE} z",
        **{name: random(HIDDEN) for name in "gbc"},
    )
    agrees(model, run_plainly, {"x": STATES, "s": OTHER})


def test_the_mean_of_skip_layer_normalization_is_refused() -> None:
    model = model_of(
        "y, m = com.microsoft.SkipLayerNormalization (x, s, g)",
        f"{STATE} x, {STATE} s",
        f"{STATE} y, float[{BATCH}, {TOKENS}, 1] m",
        g=random(HIDDEN),
    )
    with pytest.raises(UserInputError, match=r"Output 1 of node .*SkipLayerNormalization"):
        decompose_fused_operators(model)


EMBEDDED = {
    "w": random(11, HIDDEN),
    "p": random(7, HIDDEN),
    "t": random(2, HIDDEN),
    "g": random(HIDDEN),
    "b": random(HIDDEN),
}
IDS = RNG.integers(0, 11, size=(BATCH, TOKENS)).astype(np.int32)
SEGMENTS = RNG.integers(0, 2, size=(BATCH, TOKENS)).astype(np.int32)


def test_embed_layer_normalization(run_plainly) -> None:
    model = model_of(
        "y, l = com.microsoft.EmbedLayerNormalization <epsilon = 1e-5> (i, s, w, p, t, g, b)",
        f"{PAD} i, {PAD} s",
        **EMBEDDED,
    )
    after = agrees(model, run_plainly, {"i": IDS, "s": SEGMENTS})
    assert ops(after)["Gather"] == 3 + 1  # the last of the length


def test_embed_layer_normalization_without_segments(run_plainly) -> None:
    tables = {name: array for name, array in EMBEDDED.items() if name != "t"}
    model = model_of(
        'y, l = com.microsoft.EmbedLayerNormalization <epsilon = 1e-5> (i, "", w, p, "", g, b)',
        f"{PAD} i",
        **tables,
    )
    agrees(model, run_plainly, {"i": IDS})


def test_embed_layer_normalization_with_position_ids_and_its_sum(run_plainly) -> None:
    model = model_of(
        "y, l, z = com.microsoft.EmbedLayerNormalization <epsilon = 1e-5> "
        '(i, s, w, p, t, g, b, "", o)',
        f"{PAD} i, {PAD} s, {PAD} o",
        f"{STATE} y, {STATE} z",
        **EMBEDDED,
    )
    places = RNG.integers(0, 7, size=(BATCH, TOKENS)).astype(np.int32)
    agrees(model, run_plainly, {"i": IDS, "s": SEGMENTS, "o": places})


@pytest.mark.parametrize("has_shape", [True, False])
def test_lengths_of_embed_layer_normalization_mask_an_attention(run_plainly, has_shape) -> None:
    model = model_of(
        "h, l = com.microsoft.EmbedLayerNormalization <epsilon = 1e-5> (i, s, w, p, t, g, b, m) "
        f"y = com.microsoft.Attention <num_heads = {HEADS}> (h, aw, ab, l)",
        f"{PAD} i, {PAD} s, {PAD} m",
        **EMBEDDED,
        aw=random(HIDDEN, 3 * HIDDEN),
        ab=random(3 * HIDDEN),
    )
    if has_shape:
        embed = next(iter(model.graph))
        embed.outputs[1].shape = ir.Shape(["b"])
        embed.outputs[1].dtype = ir.DataType.INT32
    after = agrees(model, run_plainly, {"i": IDS, "s": SEGMENTS, "m": MASK})
    assert ops(after)["Softmax"] == 1


def attention_model(mask: str = "", attributes: str = "", inputs: str = "") -> ir.Model:
    return model_of(
        f"y = com.microsoft.Attention <num_heads = {HEADS}{attributes}> (x, w, b{inputs})",
        f"{STATE} x{mask}",
        w=random(HIDDEN, 3 * HIDDEN),
        b=random(3 * HIDDEN),
    )


@pytest.mark.parametrize(
    "attributes", ["", ", scale = 0.25", ", mask_filter_value = -3.4e38"], ids=str
)
def test_attention_with_a_mask_of_tokens(run_plainly, attributes) -> None:
    model = attention_model(f", {PAD} m", attributes, ", m")
    after = agrees(model, run_plainly, {"x": STATES, "m": MASK})
    assert ops(after)["MatMul"] == 3 + 2


def test_attention_with_a_mask_of_lengths(run_plainly) -> None:
    model = attention_model(f", int32[{BATCH}] m", "", ", m")
    agrees(model, run_plainly, {"x": STATES, "m": MASK.sum(axis=1).astype(np.int32)})


def test_attention_without_a_mask(run_plainly) -> None:
    agrees(attention_model(), run_plainly, {"x": STATES})


def test_attention_without_a_bias(run_plainly) -> None:
    model = model_of(
        f'y = com.microsoft.Attention <num_heads = {HEADS}> (x, w, "", m)',
        f"{STATE} x, {PAD} m",
        w=random(HIDDEN, 3 * HIDDEN),
    )
    same = model_of(
        f"y = com.microsoft.Attention <num_heads = {HEADS}> (x, w, b, m)",
        f"{STATE} x, {PAD} m",
        w=model.graph.initializers["w"].const_value.numpy(),
        b=np.zeros(3 * HIDDEN, np.float32),
    )
    # onnxruntime's own operator ends the process without one.
    expected, result = (
        run_plainly(each, {"x": STATES, "m": MASK})["y"]
        for each in (same, decompose_fused_operators(model))
    )
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "attributes", "inputs", "message"),
    [
        (f", int32[{BATCH}, 1, {TOKENS}] m", "", ", m", "takes a mask of shape"),
        ("", ", unidirectional = 1", "", "Attention. is not supported"),
        ("", ", qkv_hidden_sizes = [8, 8, 8]", "", "Attention. is not supported"),
        (f", float[2, {BATCH}, {HEADS}, 3, 4] p", "", ', "", p', "has input 4"),
        (f", float[1, {HEADS}, {TOKENS}, {TOKENS}] p", "", ', "", "", p', "has input 5"),
    ],
    ids=["3d-mask", "one-way", "other-sizes", "past", "bias-of-scores"],
)
def test_attention_of_another_form_is_refused(mask, attributes, inputs, message) -> None:
    model = attention_model(mask, attributes, inputs)
    with pytest.raises(UserInputError, match=message):
        decompose_fused_operators(model)


def test_attention_whose_weight_is_computed_is_refused() -> None:
    model = model_of(
        f"y = com.microsoft.Attention <num_heads = {HEADS}> (x, w, b)",
        f"{STATE} x, float[{HIDDEN}, {3 * HIDDEN}] w",
        b=random(3 * HIDDEN),
    )
    with pytest.raises(UserInputError, match="a constant weight"):
        decompose_fused_operators(model)


def multi_head_model(inputs: str, more: str = "", attributes: str = "", **constants) -> ir.Model:
    return model_of(
        f"y = com.microsoft.MultiHeadAttention <num_heads = {HEADS}{attributes}> ({inputs})",
        f"{STATE} q, {STATE} k, {STATE} v{more}",
        **constants,
    )


THREE = {"q": STATES, "k": OTHER, "v": THIRD}


def test_multi_head_attention(run_plainly) -> None:
    after = agrees(multi_head_model("q, k, v"), run_plainly, THREE)
    assert ops(after)["Softmax"] == 1


def test_multi_head_attention_with_a_bias_and_a_mask_of_tokens(run_plainly) -> None:
    model = multi_head_model("q, k, v, b, m", f", {PAD} m", b=random(3 * HIDDEN))
    agrees(model, run_plainly, {**THREE, "m": MASK})


def test_multi_head_attention_with_a_mask_of_lengths(run_plainly) -> None:
    model = multi_head_model('q, k, v, "", m', f", int32[{BATCH}] m")
    agrees(model, run_plainly, {**THREE, "m": MASK.sum(axis=1).astype(np.int32)})


@pytest.mark.parametrize("attributes", ["", ", scale = 0.1"])
def test_multi_head_attention_with_a_bias_of_scores(run_plainly, attributes) -> None:
    bias = random(BATCH, HEADS, TOKENS, TOKENS)
    model = multi_head_model(
        'q, k, v, b, "", a',
        f", float[{BATCH}, {HEADS}, {TOKENS}, {TOKENS}] a",
        attributes,
        b=random(3 * HIDDEN),
    )
    agrees(model, run_plainly, {**THREE, "a": bias})


def test_multi_head_attention_of_another_form_is_refused() -> None:
    packed = model_of(
        f"y = com.microsoft.MultiHeadAttention <num_heads = {HEADS}> (q)",
        f"float[{BATCH}, {TOKENS}, {HEADS}, 3, {HIDDEN // HEADS}] q",
    )
    with pytest.raises(UserInputError, match="packed"):
        decompose_fused_operators(packed)
    cached = multi_head_model(
        'q, k, v, "", "", "", p, p',
        f", float[{BATCH}, {HEADS}, 3, {HIDDEN // HEADS}] p",
    )
    with pytest.raises(UserInputError, match="has input 6"):
        decompose_fused_operators(cached)
    with pytest.raises(UserInputError, match="encoder"):
        decompose_fused_operators(multi_head_model("q, k, v", "", ", unidirectional = 1"))


@pytest.mark.parametrize("alpha", ["", ", alpha = 0.25"])
@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_fused_mat_mul(run_plainly, left, right, alpha) -> None:
    one = random(2, 4, 3) if left else random(2, 3, 4)
    two = random(2, 5, 4) if right else random(2, 4, 5)
    model = model_of(
        f"y = com.microsoft.FusedMatMul <transA = {left}, transB = {right}{alpha}> (a, c)",
        f"float{list(one.shape)} a, float{list(two.shape)} c",
        "float[2, 3, 5] y",
    )
    agrees(model, run_plainly, {"a": one, "c": two})


def test_fused_mat_mul_that_transposes_a_batch_is_refused() -> None:
    model = model_of(
        "y = com.microsoft.FusedMatMul <transBatchA = 1> (a, c)",
        "float[3, 2, 4] a, float[2, 4, 5] c",
        "float[2, 3, 5] y",
    )
    with pytest.raises(UserInputError, match="FusedMatMul"):
        decompose_fused_operators(model)


@pytest.mark.parametrize("kind", ["", "float", "bool"])
@pytest.mark.parametrize("attributes", ["", "<scale = 0.3>"])
def test_attention_of_onnx(kind, attributes) -> None:
    shape = (BATCH, HEADS, TOKENS, 4)
    more = f", {kind}[{BATCH}, 1, {TOKENS}, {TOKENS}] m" if kind else ""
    model = model_of(
        f"y = Attention {attributes} (q, k, v{', m' if kind else ''})",
        f"float{list(shape)} q, float{list(shape)} k, float{list(shape)} v{more}",
        f"float{list(shape)} y",
        opset=23,
    )
    inputs = {name: random(*shape) for name in "qkv"}
    if kind == "bool":
        inputs["m"] = np.repeat(MASK[:, None, None, :], TOKENS, axis=2).astype(bool)
    elif kind:
        inputs["m"] = random(BATCH, 1, TOKENS, TOKENS)
    after = decompose_fused_operators(model.clone())
    assert "Attention" not in ops(after)
    expected, result = (
        ReferenceEvaluator(ir.to_proto(each)).run(None, inputs)[0] for each in (model, after)
    )
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "inputs", "message"),
    [
        ("<is_causal = 1>", "q, k, v", "has `is_causal`"),
        ("<q_num_heads = 2, kv_num_heads = 2>", "q, k, v", "is not supported"),
        ("<softcap = 2.0>", "q, k, v", "has `softcap`"),
        ("", 'q, k, v, "", k, v', "has input 4"),
    ],
    ids=["causal", "three-dimensions", "softcap", "cache"],
)
def test_attention_of_onnx_in_another_form_is_refused(attributes, inputs, message) -> None:
    shape = [BATCH, HEADS, TOKENS, 4]
    model = model_of(
        f"y = Attention {attributes} ({inputs})",
        f"float{shape} q, float{shape} k, float{shape} v",
        f"float{shape} y",
        opset=23,
    )
    with pytest.raises(UserInputError, match=message):
        decompose_fused_operators(model)


def test_another_operator_of_onnxruntime_is_refused() -> None:
    model = model_of("y = com.microsoft.QuickGelu (x)", f"{STATE} x")
    with pytest.raises(UserInputError, match=r"onnxruntime's QuickGelu.*before onnxruntime's opt"):
        decompose_fused_operators(model)


def test_plain_operators_stay() -> None:
    model = model_of("z = Abs (x) y = Softmax (z)", f"{STATE} x")
    assert ops(decompose_fused_operators(model)) == {"Abs": 1, "Softmax": 1}
    assert onnx.checker.check_model(ir.to_proto(model)) is None
