from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.encoders.quantize import Choices
from qdqbert.graph.edit import add_constant, tidy
from qdqbert.graph.passes.integer_attention import fuse_integer_attention
from qdqbert.graph.passes.integer_matmul import fuse_integer_matmul
from qdqbert.graph.writer import make_graph
from qdqbert.targets.lowering import lower

# The kernel has its own exp and order of sums. A wrong head, mask or scale changes values by 0.1.
TOLERANCE = 1e-4


@pytest.fixture
def fusable(prepared) -> ir.Model:
    """One layer with integer matmuls, as the rewrite before leaves it."""
    each = prepared("sentence")
    plan = each.plan("onnxruntime")
    model = make_graph(
        each.encoder,
        plan.specs,
        Choices(ranges=each.smooth.ranges, scales=each.scales(plan)),
        plan.target.style,
    )
    return fuse_integer_matmul(model)


@pytest.fixture
def inputs(prepared) -> dict[str, np.ndarray]:
    batch = prepared("sentence").batches[1].inputs
    assert (batch["attention_mask"] == 0).any()
    return batch


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def only(model: ir.Model, op_type: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == op_type)


def context_value(model: ir.Model) -> ir.Value:
    """Return the context, which the output layer of attention quantizes."""
    return next(
        node.inputs[0]
        for node in model.graph
        if (node.name or "").endswith("attention.output.dense._input_quantizer.quantize")
    )


def show(model: ir.Model, value: ir.Value) -> ir.Model:
    value.dtype = ir.DataType.FLOAT
    model.graph.outputs.append(value)
    return model


def linear_of(model: ir.Model, part: str) -> ir.Node:
    return next(
        node
        for node in model.graph
        if node.op_type == "MatMulIntegerToFloat" and f"self.{part}." in (node.name or "")
    )


@pytest.mark.parametrize(
    ("family", "fused"),
    [("distilbert", 1), ("deberta-v2", 0), ("modernbert", 0), ("mpnet", 0)],
    ids=["plain", "relative-positions", "rotation", "position-bias"],
)
def test_only_plain_attention_of_other_families_is_fused(prepared, family, fused) -> None:
    each = prepared(family)
    plan = each.plan("onnxruntime")
    model = lower(each.encoder, plan, Choices(ranges=each.smooth.ranges, scales=each.scales(plan)))
    assert ops(model).count("QAttention") == fused
    assert ops(model).count("Softmax") == len(each.layers) - fused


def test_attention_becomes_one_node_and_computes_the_same(fusable, inputs, run_plainly) -> None:
    show(fusable, context_value(fusable))
    name = context_value(fusable).name
    before = run_plainly(fusable, inputs)[name]
    linears = ops(fusable).count("MatMulIntegerToFloat")
    fused = fuse_integer_attention(fusable)
    counts = [
        ops(fused).count(op)
        for op in ("QAttention", "Softmax", "MatMul", "Transpose", "MatMulIntegerToFloat")
    ]
    assert counts == [1, 0, 0, 0, linears - 3]
    after = run_plainly(fused, inputs)[name]
    text = inputs["attention_mask"].astype(bool)
    np.testing.assert_allclose(after[text], before[text], atol=TOLERANCE)


def test_the_mask_is_made_once_for_all_layers(prepared) -> None:
    each = prepared("bert")
    plan = each.plan("onnxruntime")
    model = make_graph(
        each.encoder, plan.specs, Choices(ranges=each.smooth.ranges, scales=each.scales(plan))
    )
    fused = fuse_integer_attention(fuse_integer_matmul(model))
    attentions = [node for node in fused.graph if node.op_type == "QAttention"]
    assert len(attentions) == 2
    assert attentions[0].inputs[5] is attentions[1].inputs[5]
    weights = [node.inputs[1].const_value.numpy() for node in attentions]
    assert all(array.shape == (32, 96) and array.dtype == np.int8 for array in weights)
    assert not np.array_equal(*weights)


def test_projections_without_a_bias_get_zeros(fusable, inputs, run_plainly) -> None:
    for part in ("query", "key", "value"):
        linear = linear_of(fusable, part)
        linear.resize_inputs(6)
    show(fusable, context_value(fusable))
    name = context_value(fusable).name
    before = run_plainly(fusable, inputs)[name]
    fused = fuse_integer_attention(fusable)
    bias = only(fused, "QAttention").inputs[2].const_value.numpy()
    np.testing.assert_array_equal(bias, np.zeros(96, np.float32))
    text = inputs["attention_mask"].astype(bool)
    after = run_plainly(fused, inputs)[name]
    np.testing.assert_allclose(after[text], before[text], atol=TOLERANCE)


def read_other_codes(model: ir.Model) -> None:
    value = linear_of(model, "value")
    quantize = value.inputs[0].producer()
    other = ir.node("QuantizeLinear", list(quantize.inputs), name="other")
    model.graph.insert_before(value, other)
    value.replace_input_with(0, other.outputs[0])


def read_other_scale(model: ir.Model) -> None:
    key = linear_of(model, "key")
    scale = key.inputs[2].const_value.numpy()
    key.replace_input_with(2, add_constant(model.graph, "other_scale", scale * np.float32(1.5)))


def read_other_zero_point(model: ir.Model) -> None:
    key = linear_of(model, "key")
    zero = key.inputs[4].const_value.numpy()
    key.replace_input_with(4, add_constant(model.graph, "other_zero", zero + np.uint8(1)))


def scale_by_another_factor(model: ir.Model) -> None:
    scale = only(model, "Softmax").inputs[0].producer().inputs[0].producer()
    assert scale.op_type == "Mul"
    scale.replace_input_with(1, add_constant(model.graph, "factor", np.array(0.5, np.float32)))


def scale_by_something_computed(model: ir.Model) -> None:
    scale = only(model, "Softmax").inputs[0].producer().inputs[0].producer()
    computed = ir.node("Abs", [scale.inputs[1]], name="computed")
    model.graph.insert_before(scale, computed)
    scale.replace_input_with(1, computed.outputs[0])


def mask_by_constant(model: ir.Model) -> None:
    add = only(model, "Softmax").inputs[0].producer()
    zeros = np.zeros((1, 1, 1, 1), np.float32)
    add.replace_input_with(1, add_constant(model.graph, "no_mask", zeros))


def mask_by_query(model: ir.Model) -> None:
    """Make a mask that differs between queries."""
    add = only(model, "Softmax").inputs[0].producer()
    turned = ir.node("Transpose", [add.inputs[1]], {"perm": [0, 1, 3, 2]}, name="turned")
    both = ir.node("Add", [add.inputs[1], turned.outputs[0]], name="both")
    batch, _, _, sequence = add.inputs[1].shape
    both.outputs[0].shape = ir.Shape([batch, 1, sequence, sequence])
    both.outputs[0].dtype = ir.DataType.FLOAT
    model.graph.insert_before(add, [turned, both])
    add.replace_input_with(1, both.outputs[0])


def show_probabilities(model: ir.Model) -> None:
    show(model, only(model, "Softmax").outputs[0])


def show_context(model: ir.Model) -> None:
    show(model, context_value(model).producer().inputs[0])


def change_heads(model: ir.Model) -> None:
    """Insert a node between a projection and its heads."""
    linear = linear_of(model, "query")
    reshape = next(iter(linear.outputs[0].consumers()))
    between = ir.node("Tanh", [linear.outputs[0]], name="between")
    model.graph.insert_before(reshape, between)
    reshape.replace_input_with(0, between.outputs[0])


@pytest.mark.parametrize(
    "change",
    [
        read_other_codes,
        read_other_scale,
        read_other_zero_point,
        scale_by_another_factor,
        scale_by_something_computed,
        mask_by_constant,
        mask_by_query,
        show_probabilities,
        show_context,
        change_heads,
    ],
    ids=lambda change: change.__name__.replace("_", "-"),
)
def test_other_attention_is_kept(
    fusable, inputs, run_plainly, change: Callable[[ir.Model], None]
) -> None:
    change(fusable)
    tidy(fusable)
    before, names = run_plainly(fusable, inputs), sorted(ops(fusable))
    result = fuse_integer_attention(fusable)
    assert sorted(ops(result)) == names
    for name, expected in before.items():
        np.testing.assert_array_equal(run_plainly(result, inputs)[name], expected)


def test_float_attention_is_kept(prepared) -> None:
    each = prepared("sentence")
    plan = each.plan("portable", "full")
    model = make_graph(each.encoder, plan.specs, Choices(ranges=each.plain.ranges))
    names = ops(model)
    assert ops(fuse_integer_attention(model)) == names
