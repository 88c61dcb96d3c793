"""Forms of a graph that targets ask for: operators of ONNX Runtime, zero points in biases."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graphs.edit import constant_array
from qdqbert.graphs.nodes import Nodes
from qdqbert.graphs.qdq import SiteWriter
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.writer import OPSET, make_graph
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import QdqStyle, Range, TensorSpec

PAIRS = QdqStyle(unsigned_activations=True)
FUSED = dataclasses.replace(PAIRS, onnxruntime_operators=True)
SHIFTED = QdqStyle(absorbs_zero_points=True)
# The kernels have their own exp and order of sums. A wrong head or mask changes values by 0.1.
TOLERANCE = 1e-4


def ops(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def written(each, style: QdqStyle, recipe: str = "linear", **changes) -> ir.Model:
    """Write the graph of a model with changes to each attention."""
    plan = each.plan("onnxruntime", recipe)
    return make_graph(
        with_attention(each.encoder, **changes), plan.specs, each.choices(plan), style
    )


def with_attention(model: EncoderModel, **changes) -> EncoderModel:
    layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, **changes))
        for layer in model.layers
    )
    return dataclasses.replace(model, layers=layers)


def assert_same(run_plainly, each, one: ir.Model, other: ir.Model) -> None:
    """Compare the outputs of two graphs for text."""
    inputs = each.batches[1].inputs
    text = inputs["attention_mask"].astype(bool)
    assert not text.all()
    first, second = (
        run_plainly(model, inputs)["last_hidden_state"][text] for model in (one, other)
    )
    # Sums are int32 instead of float32, so ties may be rounded to the other code.
    error = np.abs(first - second)
    assert np.median(error) < TOLERANCE
    assert sqnr_db(first, second) > 35


def test_linear_layers_and_attention_of_bert_are_single_nodes(prepared, run_plainly) -> None:
    each = prepared("bert")
    pairs, fused = (written(each, style) for style in (PAIRS, FUSED))
    counts = [
        ops(fused)[name] for name in ("QAttention", "MatMulIntegerToFloat", "MatMul", "Softmax")
    ]
    # Three of the six linear layers of each of the two layers are part of QAttention.
    assert counts == [2, 6, 0, 0]
    assert ops(fused)["DequantizeLinear"] == 0
    assert_same(run_plainly, each, pairs, fused)


def test_ranges_that_are_computed_at_run_time_are_fused_too(prepared, run_plainly) -> None:
    each = prepared("bert")
    plan = each.plan("onnxruntime-dynamic")
    choices = Choices(scales=each.scales(plan))
    pairs, fused = (
        make_graph(each.encoder, plan.specs, choices, style)
        for style in (QdqStyle(), plan.target.style)
    )
    assert [ops(fused)[name] for name in ("QAttention", "MatMulIntegerToFloat")] == [2, 6]
    assert_same(run_plainly, each, pairs, fused)


@pytest.mark.parametrize(
    ("family", "attentions", "linears"),
    [("distilbert", 1, 3), ("deberta-v2", 0, 12), ("modernbert", 0, 8), ("mpnet", 0, 6)],
    ids=["plain", "relative-positions", "rotation-and-no-bias", "position-bias"],
)
def test_only_plain_attention_of_other_families_is_one_node(
    prepared, run_plainly, family, attentions, linears
) -> None:
    each = prepared(family)
    pairs, fused = (written(each, style) for style in (PAIRS, FUSED))
    counts = [ops(fused)[name] for name in ("QAttention", "MatMulIntegerToFloat")]
    assert counts == [attentions, linears]
    assert_same(run_plainly, each, pairs, fused)


@pytest.mark.parametrize(
    "changes",
    [{"scale": 0.5}, {"causal": True}, {"window": 4}, {"scales_keys": True}],
    ids=lambda each: next(iter(each)),
)
def test_attention_that_the_kernel_does_not_compute_is_kept(prepared, run_plainly, changes) -> None:
    each = prepared("bert")
    pairs, fused = (written(each, style, **changes) for style in (PAIRS, FUSED))
    counts = [ops(fused)[name] for name in ("QAttention", "Softmax", "MatMulIntegerToFloat")]
    assert counts == [0, 2, 12]
    assert_same(run_plainly, each, pairs, fused)


def test_attention_with_rounded_operands_is_kept(prepared, run_plainly) -> None:
    each = prepared("bert")
    pairs, fused = (written(each, style, "full") for style in (PAIRS, FUSED))
    assert [ops(fused)[name] for name in ("QAttention", "Softmax")] == [0, 2]
    assert_same(run_plainly, each, pairs, fused)


def test_projections_of_other_codes_are_kept_apart(prepared, run_plainly) -> None:
    each = prepared("bert")
    plan = each.plan("onnxruntime")
    choices = each.choices(plan)
    name = "encoder.layer.0.attention.self.key._input_quantizer"
    wider = dataclasses.replace(choices.ranges[name], high=2 * choices.ranges[name].high)
    changed = dataclasses.replace(choices, ranges={**choices.ranges, name: wider})
    pairs, fused = (
        make_graph(each.encoder, plan.specs, changed, style) for style in (PAIRS, FUSED)
    )
    assert [ops(fused)[name] for name in ("QAttention", "MatMulIntegerToFloat")] == [1, 9]
    assert_same(run_plainly, each, pairs, fused)


def test_all_layers_read_one_mask(prepared) -> None:
    nodes = [
        node for node in written(prepared("bert"), FUSED).graph if node.op_type == "QAttention"
    ]
    assert nodes[0].inputs[5] is nodes[1].inputs[5]


def test_sums_in_front_of_a_layer_norm_are_not_fused(prepared, run_plainly) -> None:
    each = prepared("bert")
    plain, kept = (make_graph(each.encoder, style=style) for style in (PAIRS, FUSED))
    # Two in each layer, and the last add of the embeddings.
    assert ops(kept)["Sum"] == 5
    assert ops(kept)["Add"] == ops(plain)["Add"] - 5
    inputs = each.batches[0].inputs
    first, second = (run_plainly(model, inputs)["last_hidden_state"] for model in (plain, kept))
    np.testing.assert_array_equal(first, second)


def test_sums_that_are_not_normalized_alone_are_adds(prepared) -> None:
    # ModernBERT's sums go on to the next sum, too.
    assert ops(make_graph(prepared("modernbert").encoder, style=FUSED))["Sum"] == 0


def zero_points(model: ir.Model) -> list[np.ndarray]:
    kinds = ("QuantizeLinear", "DequantizeLinear")
    return [constant_array(node.inputs[2]) for node in model.graph if node.op_type in kinds]


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_zero_points_move_into_biases(prepared, run_plainly, name) -> None:
    each = prepared(name)
    plan = each.plan("portable", "linear")
    affine, shifted = (
        make_graph(each.encoder, plan.specs, each.choices(plan), style)
        for style in (QdqStyle(), SHIFTED)
    )
    assert any(each.any() for each in zero_points(affine))
    assert not any(each.any() for each in zero_points(shifted))
    assert ops(shifted)["QuantizeLinear"] == ops(affine)["QuantizeLinear"]
    # Few values are so close to a tie that float32 decides. A wrong bias gives less than 10 dB.
    inputs = each.batches[0].inputs
    first, second = (run_plainly(model, inputs)["last_hidden_state"] for model in (affine, shifted))
    assert sqnr_db(first, second) > 40


@pytest.mark.parametrize("bits", [4, 7])
def test_codes_of_few_bits_need_no_shift(prepared, run_plainly, bits) -> None:
    each = prepared("bert")
    plan = each.plan("portable", "linear")
    specs = QuantizerOptions(aprec=bits).apply(plan.specs, each.sited.sites)
    affine, shifted = (
        make_graph(each.encoder, specs, each.choices(plan), style)
        for style in (QdqStyle(), SHIFTED)
    )
    assert ops(shifted)["Add"] == ops(affine)["Add"]
    assert not any(each.any() for each in zero_points(shifted))
    inputs = each.batches[0].inputs
    first, second = (run_plainly(model, inputs)["last_hidden_state"] for model in (affine, shifted))
    np.testing.assert_array_equal(first, second)


def test_a_residual_keeps_its_zero_point(prepared) -> None:
    each = prepared("bert")
    plan = each.plan("portable", "linear")
    site = "encoder.layer.0.output.add_residual_input_quantizer"
    specs = {**plan.specs, site: TensorSpec(signed=False, symmetric=False)}
    model = make_graph(each.encoder, specs, each.choices(plan), SHIFTED)
    (node,) = (node for node in model.graph if node.name == f"{site}.quantize")
    assert constant_array(node.inputs[2]) != 0


def test_float16_represents_each_shift_exactly(prepared) -> None:
    each = prepared("bert")
    plan = each.plan("portable", "linear")
    model = make_graph(each.encoder, plan.specs, each.choices(plan), TARGETS["tensorrt"].style)
    arrays = [
        constant_array(value)
        for name, value in model.graph.initializers.items()
        if name.endswith(".shift")
    ]
    assert len(arrays) >= 4
    assert all(array == np.float16(array) for array in arrays)


def test_a_shifted_code_is_the_affine_code_less_its_middle(run_plainly) -> None:
    spec = TensorSpec(signed=False, symmetric=False)
    # A step is 1 / 64, and zero is code 8.
    chosen = Range(amax=3.9, low=-8 / 64, high=247 / 64)
    rng = np.random.default_rng(0)
    # No value is near a tie; some are beyond both ends.
    given = (np.arange(-20, 280) + rng.uniform(-0.4, 0.4, 300)).astype(np.float32) / 64 - 8 / 64
    codes = []
    for style in (QdqStyle(), SHIFTED):
        add = Nodes([ir.val("x", ir.DataType.FLOAT, [300])], OPSET)
        sites = SiteWriter(add, {"a": spec}, Choices(ranges={"a": chosen}), style)
        made = sites._quantized("a", "x", spec, shifts=style.absorbs_zero_points)
        value = add.values[made.codes]
        value.dtype = ir.DataType.INT8 if style.absorbs_zero_points else ir.DataType.UINT8
        add.graph.outputs.append(value)
        model = ir.Model(add.graph, ir_version=10)
        codes.append(run_plainly(model, {"x": given})[made.codes].astype(int))
    np.testing.assert_array_equal(codes[1], codes[0] - 128)
