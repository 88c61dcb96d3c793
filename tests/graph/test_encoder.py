"""Graphs are read as encoders: the reference computes what ONNX Runtime does for the same graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import transformers

from encoder_reference import check_read, random_inputs
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.errors import GraphError
from qdqbert.graph.edit import add_constant, tidy
from qdqbert.graph.encoder import read_encoder
from qdqbert.graph.of_checkpoint import graph_of
from qdqbert.graph.qdq import float_graph
from qdqbert.recipes import QuantizerOptions
from qdqbert.targets import TARGETS
from qdqbert.targets.lowering import lower
from qdqbert.targets.target import make_plan
from task_files import HEADS

# CamemBERT and XLM-RoBERTa have the modules of RoBERTa.
FAMILIES = ("bert", "distilbert", "electra", "mpnet", "roberta")
# `full` has the quantizers of `linear+matmul`, and residual adds.
RECIPES = ("ffn", "linear+matmul", "full", "full-smoothed")
TASKS = ("fill-mask", "multiple-choice", "question-answering", "text-generation")


def lowered(each: Any, recipe: str | None, target: str = "portable", **changes: Any) -> ir.Model:
    """Return a graph with plain Q/DQ pairs."""
    chosen = dataclasses.replace(TARGETS[target], rewrites=())
    plan = make_plan(chosen, each.sited.sites, recipe=recipe, embeddings="int8", **changes)
    ranges = {} if chosen.dynamic else each.calibration(plan).ranges
    return lower(each.graph, plan, ranges, each.scales(plan))


@pytest.fixture
def bert(prepared):
    return prepared("bert")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float_graph_of_each_family_is_read(prepared, run_plainly, family) -> None:
    each = prepared(family)
    model, inputs = float_graph(each.graph), random_inputs((5, 23))
    # A text that spells the padding token.
    inputs["input_ids"][:, 3] = 1
    read = check_read(model, run_plainly, inputs, has_codes=False, longest=64)
    assert len(read.layers) == len(each.layers)
    assert read.limit == 64
    assert read.input_names == each.checkpoint.input_names
    assert read.layers[0].attention.heads == 4
    assert (read.embeddings.projection is None) == (family != "electra")
    assert (read.embeddings.token_types is None) == (family in ("distilbert", "mpnet"))
    assert read.embeddings.padding_id == (1 if family in ("roberta", "mpnet") else None)
    assert (read.layers[0].attention.position_bias is None) == (family != "mpnet")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_int8_graph_of_each_family_is_read(prepared, run_plainly, family) -> None:
    model, inputs = lowered(prepared(family), "linear"), random_inputs((5, 23))
    read = check_read(model, run_plainly, inputs, longest=64)
    assert read.embeddings.words.rows.dtype == np.int8
    for layer in read.layers:
        attention = layer.attention
        for linear in (attention.query, attention.output, layer.up, layer.down):
            assert linear.weight.dtype == np.int8
            assert linear.weight_scale.shape == linear.bias.shape
            assert 0 < linear.codes.zero_point < 255
        # Inputs from a LayerNorm are smoothed.
        assert layer.up.codes.multiplier.shape == (32,)
        assert attention.output.codes.multiplier.shape == ()
        assert attention.query_codes is layer.residual.local_codes is None


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_is_read(bert, run_plainly, recipe) -> None:
    read = check_read(lowered(bert, recipe), run_plainly, random_inputs((5, 9)))
    attention, residual = read.layers[1].attention, read.layers[1].residual
    assert (attention.query.codes is None) == (recipe == "ffn")
    of_matmuls = (
        attention.query_codes,
        attention.key_codes,
        attention.probability_codes,
        attention.value_codes,
    )
    of_sums = (residual.local_codes, residual.residual_codes)
    assert [each is None for each in of_matmuls] == [recipe == "ffn"] * 4
    assert [each is None for each in of_sums] == [not recipe.startswith("full")] * 2
    if recipe == "full":
        # int8 codes are stored as uint8.
        assert attention.query.codes.zero_point == 128
        assert (of_sums[0].low, of_sums[0].high, of_sums[0].zero_point) == (-128, 127, 0)
    if recipe == "full-smoothed":
        assert of_sums[0].pre_quant_scale.shape == (32,)


def test_query_key_and_value_may_have_codes_of_their_own(bert, run_plainly) -> None:
    model = lowered(bert, "full", dedicated_pairs=True)
    replace_constant(model, "layer.0.attention.self.key._input_quantizer.scale", np.float32(0.05))
    attention = check_read(model, run_plainly, random_inputs((3, 9))).layers[0].attention
    assert attention.key.codes.scale == pytest.approx(0.05)
    assert attention.query.codes.scale == attention.value.codes.scale != pytest.approx(0.05)


def test_inputs_with_ranges_at_run_time_are_read(bert, run_plainly) -> None:
    # ONNX's range is that of a whole batch.
    model = lowered(bert, "linear", "onnxruntime-dynamic")
    read = check_read(model, run_plainly, random_inputs((1, 9)), per_tensor=True)
    codes = read.layers[0].up.codes
    assert codes.dynamic
    assert codes.scale == 1
    assert codes.multiplier.shape == (32,)


def test_a_weight_alone_may_have_codes(bert, run_plainly) -> None:
    options = QuantizerOptions(quant_disable_keyword=(r"\._input_quantizer",))
    model = lowered(bert, "linear", quantizer_options=options)
    read = check_read(model, run_plainly, random_inputs((3, 9)), has_codes=False)
    assert read.layers[0].up.weight.dtype == np.float32


@pytest.mark.parametrize("task", TASKS)
def test_the_head_of_each_task_is_read(save_tiny, tmp_path, run_plainly, task) -> None:
    head = HEADS[task]
    auto_class = getattr(transformers, head.auto_class)
    save_tiny(tmp_path, "bert", auto_class, num_hidden_layers=1, **head.changes)
    checkpoint = load_checkpoint(str(tmp_path))
    model = float_graph(graph_of(checkpoint))
    shape = (2, 5, 9) if task == "multiple-choice" else (5, 9)
    read = check_read(model, run_plainly, random_inputs(shape), has_codes=False)
    (found,) = read.heads
    assert read.has_choices == (task == "multiple-choice")
    assert read.layers[0].attention.causal == (task == "text-generation")
    names = [output.name for output in found.outputs]
    columns = [output.column for output in found.outputs]
    if task == "question-answering":
        assert (names, columns) == (["start_logits", "end_logits"], [0, 1])
    else:
        assert (names, columns) == (["logits"], [0 if read.has_choices else None])


def test_fewer_bits_of_activations_are_refused(bert) -> None:
    model = lowered(bert, "linear", quantizer_options=QuantizerOptions(aprec=7))
    with pytest.raises(GraphError, match="uses only a part of its 256 codes"):
        read_encoder(model)


def replace_constant(model: ir.Model, end: str, array: Any) -> None:
    """Replace the first constant whose name has that end."""
    name = next(name for name in model.graph.initializers if name.endswith(end))
    model.graph.initializers[name].const_value = ir.tensor(np.asarray(array), name=name)


def insert_after(
    model: ir.Model, kind: str, op_type: str, others: Sequence[ir.Value] = (), *, index: int = 0
) -> None:
    """Insert a node after a node of a kind, and let all readers of that one read it."""
    before = [node for node in model.graph if node.op_type == kind][index]
    value = before.outputs[0]
    made = ir.node(op_type, [value, *others], name="inserted")
    name, value.name = value.name, "before"
    made.outputs[0].name, made.outputs[0].type = name, value.type
    value.replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
    made.replace_input_with(0, value)
    model.graph.insert_after(before, made)


def put_ids_out(model: ir.Model) -> None:
    """Add an output that is computed from the token ids alone."""
    made = ir.node("Neg", [model.graph.inputs[0]], name="inserted")
    made.outputs[0].name = "more"
    made.outputs[0].dtype = ir.DataType.INT64
    model.graph.append(made)
    model.graph.outputs.append(made.outputs[0])


def put_inner_states_out(model: ir.Model) -> None:
    norms = [node for node in model.graph if node.op_type == "LayerNormalization"]
    model.graph.outputs.append(norms[2].outputs[0])


def flatten_output(model: ir.Model) -> None:
    shape = add_constant(model.graph, "flat", np.array([-1, 32]))
    insert_after(model, "LayerNormalization", "Reshape", [shape], index=-1)


def add_node_without_reader(model: ir.Model) -> None:
    model.graph.append(ir.node("Neg", [model.graph.outputs[0]], name="inserted"))


def rename_input(model: ir.Model) -> None:
    model.graph.inputs[1].name = "position_ids"


CHANGES = {
    "weight-with-zero-point": (
        functools.partial(
            replace_constant, end="query.weight_zero_point", array=np.ones(32, np.int8)
        ),
        "has a weight with a zero point",
    ),
    "unsigned-weight": (
        functools.partial(
            replace_constant, end="query.weight_codes", array=np.ones((32, 32), np.uint8)
        ),
        "has a weight of type uint8",
    ),
    "scale-of-zero": (
        functools.partial(replace_constant, end="._input_quantizer.scale", array=np.float32(0)),
        "has the scale 0.0",
    ),
    "codes-of-16-bits": (
        functools.partial(replace_constant, end="._input_quantizer.zero_point", array=np.uint16(0)),
        "has codes of type uint16",
    ),
    "other-activation": (
        functools.partial(insert_after, kind="Gelu", op_type="Sin"),
        "node 'inserted' .Sin. is not one of the activation functions",
    ),
    "changed-states": (
        functools.partial(insert_after, kind="LayerNormalization", op_type="Neg"),
        "node 'inserted' .Neg. changes an input of a residual add",
    ),
    "changed-probabilities": (
        functools.partial(insert_after, kind="Softmax", op_type="Sqrt"),
        "changes the probabilities",
    ),
    "changed-mask": (
        functools.partial(insert_after, kind="Where", op_type="Neg"),
        "has a mask that is neither of padding nor causal nor a window",
    ),
    "output-of-ids": (put_ids_out, "does not compute output `more` from states"),
    "output-of-an-inner-layer": (put_inner_states_out, "computed from states of another layer"),
    "flat-output": (flatten_output, "gives output `last_hidden_state` another shape"),
    "node-without-reader": (add_node_without_reader, "is not part of the encoder or of a head"),
    "other-input": (rename_input, "`position_ids` is not an input"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_engine_does_not_run_is_refused(bert, change) -> None:
    model = lowered(bert, "linear")
    edit, message = CHANGES[change]
    edit(model)
    with pytest.raises(GraphError, match=f"{message}.*Quantize the checkpoint instead"):
        read_encoder(model)


def test_a_deep_graph_without_declared_shapes_is_read(save_tiny, tmp_path) -> None:
    save_tiny(tmp_path, "bert", num_hidden_layers=24)
    checkpoint = load_checkpoint(str(tmp_path))
    model = float_graph(graph_of(checkpoint))
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    assert len(read_encoder(model).layers) == 24


def test_states_may_be_multiplied_by_the_mask(bert, run_plainly) -> None:
    model = float_graph(bert.graph)
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    axes = add_constant(model.graph, "axes", np.array([2]))
    column = ir.node("Unsqueeze", [mask, axes])
    kept = ir.node("Cast", column.outputs, {"to": ir.DataType.FLOAT})
    model.graph.insert_before(model.graph[0], [column, kept])
    insert_after(model, "LayerNormalization", "Mul", kept.outputs, index=2)
    read = check_read(model, run_plainly, random_inputs((5, 9)), has_codes=False)
    assert len(read.layers) == 2


def test_one_linear_layer_may_compute_query_key_and_value(bert, run_plainly) -> None:
    model = float_graph(bert.graph)
    graph = model.graph
    adds = [
        node
        for node in graph
        if node.op_type == "Add"
        and any("layer.0.attention.self" in str(x.name) for x in node.inputs)
    ]
    assert len(adds) == 3
    matmuls = [add.inputs[0].producer() for add in adds]
    # Query, key and value are three parts of each output row.
    weights = [matmul.inputs[1].const_value.numpy() for matmul in matmuls]
    biases = [add.inputs[1].const_value.numpy() for add in adds]
    weight, bias = (
        add_constant(graph, name, np.concatenate(arrays, axis=-1))
        for name, arrays in (("qkv.weight", weights), ("qkv.bias", biases))
    )
    product = ir.node("MatMul", [matmuls[0].inputs[0], weight], name="qkv")
    total = ir.node("Add", [product.outputs[0], bias])
    parts = ir.node("Split", total.outputs, {"axis": -1, "num_outputs": 3}, num_outputs=3)
    graph.insert_before(matmuls[0], [product, total, parts])
    for add, part in zip(adds, parts.outputs, strict=True):
        add.outputs[0].replace_all_uses_with(part)
    read = check_read(tidy(model), run_plainly, random_inputs((3, 9)), has_codes=False)
    np.testing.assert_array_equal(read.layers[0].attention.key.weight, weights[1].T)
