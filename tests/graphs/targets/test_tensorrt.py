"""The target `tensorrt`."""

from __future__ import annotations

import collections
import dataclasses
import itertools

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.encoders.quantize import Choices
from qdqbert.graphs.edit import constant_array
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import make_plan
from qdqbert.graphs.writer import make_graph
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.quantization.spec import QdqStyle, TensorSpec

# The float16 graphs of all families are compared in `graphs/test_half_precision.py`.
FAMILIES = ["bert", "deberta-v2", "distilbert", "modernbert"]
# Number of Q/DQ pairs in two layers of BERT: shared, and with one for each reader.
PAIRS = {
    "ffn": (4, 4),
    "linear": (8, 12),
    "linear+qk": (12, 16),
    "linear+matmul": (16, 20),
    "full": (20, 28),
    "full-smoothed": (24, 28),
}


@pytest.fixture
def bert(prepared):
    return prepared("bert")


def counts_of(model: ir.Model) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in model.graph)


def lowered(each, recipe: str, *, dedicated: bool = False, target: str = "tensorrt") -> ir.Model:
    plan = each.plan(target, recipe)
    plan = dataclasses.replace(plan, dedicated_pairs=dedicated)
    return lower(each.encoder, plan, each.choices(plan))


@pytest.mark.parametrize("recipe", list(PAIRS))
@pytest.mark.usual("full", "linear*")
def test_each_recipe_writes_the_expected_number_of_pairs(bert, recipe) -> None:
    shared, dedicated = (lowered(bert, recipe, dedicated=each) for each in (False, True))
    weights = 2 * (2 if recipe == "ffn" else 6)
    for model, pairs in zip((shared, dedicated), PAIRS[recipe], strict=True):
        assert counts_of(model)["QuantizeLinear"] == pairs
        assert counts_of(model)["DequantizeLinear"] == pairs + weights


def test_scales_and_values_are_float16_and_codes_int8(bert) -> None:
    model = lowered(bert, "full")
    kinds = collections.Counter(
        value.const_value.dtype for value in model.graph.initializers.values()
    )
    assert set(kinds) == {ir.DataType.FLOAT16, ir.DataType.INT8, ir.DataType.INT64}
    weights = [
        node
        for node in model.graph
        if node.op_type == "DequantizeLinear" and constant_array(node.inputs[0]) is not None
    ]
    assert len(weights) == 12
    for node in weights:
        codes, scale = (constant_array(value) for value in node.inputs[:2])
        assert (codes.dtype, scale.dtype) == (np.int8, np.float16)
        assert node.attributes["axis"].as_int() == 1
        assert scale.shape == codes.shape[1:]
        assert codes.min() >= -127
    assert [value.dtype for value in model.graph.outputs] == [ir.DataType.FLOAT]
    assert {value.dtype for value in model.graph.inputs} == {ir.DataType.INT64}


def test_inputs_of_linear_layers_stay_affine_and_all_others_become_symmetric(bert) -> None:
    plan = bert.plan("tensorrt", "full-smoothed")
    kinds = {
        name.endswith("._input_quantizer"): plan.specs[name].symmetric
        for name in sorted(plan.activations)
    }
    assert kinds == {True: False, False: True}
    assert all(plan.specs[name].adjacent_sum_limit is None for name in plan.activations)


def test_probabilities_of_the_full_recipe_have_signed_codes(bert) -> None:
    plan = bert.plan("tensorrt", "full")
    assert {plan.specs[name] for name in plan.activations if "matmul_a" in name} == {TensorSpec()}


def test_the_default_recipe_is_linear(bert) -> None:
    assert bert.plan("tensorrt").specs == bert.plan("tensorrt", "linear").specs


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *itertools.product(FAMILIES, ("full",)),
        *itertools.product(("bert",), ("linear",)),
        *itertools.product(("bert", "modernbert"), ("full-smoothed",)),
    ],
)
@pytest.mark.usual("bert-full-smoothed", "modernbert-full")
def test_each_layer_agrees_with_pytorch(prepared, name, recipe, check_lowered) -> None:
    each = prepared(name)
    references = each.references(each.plan("tensorrt", recipe))
    check = check_lowered(lowered(each, recipe), references, "onnxruntime")
    assert check.is_exact
    assert check.worst_layer_db >= (40 if recipe == "linear" else 30)


@pytest.mark.parametrize("bits", [6, 7])
def test_graphs_with_fewer_bits_are_exact(bert, bits, check_lowered) -> None:
    plan = bert.plan("tensorrt")
    specs = QuantizerOptions(aprec=bits).apply(plan.specs, bert.sited.sites)
    plan = dataclasses.replace(plan, specs=specs)
    model = lower(bert.encoder, plan, bert.choices(plan))
    assert check_lowered(model, bert.references(plan), "onnxruntime").is_exact


def test_a_wrong_range_is_detected(bert, check_lowered) -> None:
    plan, ranges = bert.plan("tensorrt"), bert.plain.ranges
    references = bert.references(plan, ranges, {})
    site = "encoder.layer.1.output.dense._input_quantizer"
    right = ranges[site]
    wider = dataclasses.replace(right, low=right.low * 3, high=right.high * 3)
    wrong = {**ranges, site: wider}
    check = check_lowered(
        lower(bert.encoder, plan, Choices(ranges=wrong)), references, "onnxruntime"
    )
    assert not check.is_exact


@pytest.mark.parametrize("recipe", ["linear", "full", "full-smoothed"])
def test_dedicated_pairs_compute_the_same_values(bert, run_plainly, recipe) -> None:
    plan = bert.plan("portable", recipe)
    ranges, inputs = bert.calibration(plan).ranges, bert.batches[0].inputs
    models = [
        make_graph(
            bert.encoder,
            plan.specs,
            Choices(ranges=ranges, scales=bert.scales(plan)),
            QdqStyle(dedicated_pairs=dedicated),
        )
        for dedicated in (False, True)
    ]
    for node in models[1].graph:
        if node.op_type == "DequantizeLinear":
            assert len(list(node.outputs[0].uses())) == 1
    names = [node.name for node in models[1].graph]
    assert len(names) == len(set(names))
    shared, dedicated = (run_plainly(model, inputs)["last_hidden_state"] for model in models)
    np.testing.assert_array_equal(dedicated, shared)


def test_a_plan_can_request_dedicated_pairs(bert) -> None:
    plan = make_plan(TARGETS["portable"], bert.sited.sites, embeddings="int8", dedicated_pairs=True)
    model = lower(bert.encoder, plan, Choices(ranges=bert.smooth.ranges, scales=bert.scales(plan)))
    assert counts_of(model)["QuantizeLinear"] == 12
