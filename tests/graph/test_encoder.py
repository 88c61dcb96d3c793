"""Graphs are read as encoders: the reference computes what ONNX Runtime does for the same graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import transformers

from encoder_reference import check_read, random_inputs
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.errors import GraphError
from qdqbert.graph.encoder import read_encoder
from qdqbert.graph.export import GraphBody, example_inputs
from qdqbert.graph.qdq import float_graph
from qdqbert.insert.sited import insert_quantizers_
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
    read = check_read(float_graph(each.graph), run_plainly, random_inputs((5, 9)), has_codes=False)
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
    read = check_read(lowered(prepared(family), "linear"), run_plainly, random_inputs((5, 9)))
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


def test_each_reader_may_have_a_pair_of_its_own(bert, run_plainly) -> None:
    model = lowered(bert, "full", dedicated_pairs=True)
    check_read(model, run_plainly, random_inputs((3, 9)))


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
def test_the_head_of_each_task_is_read(save_tiny, export_once, tmp_path, run_plainly, task) -> None:
    head = HEADS[task]
    auto_class = getattr(transformers, head.auto_class)
    save_tiny(tmp_path, "bert", auto_class, num_hidden_layers=1, **head.changes)
    checkpoint = load_checkpoint(str(tmp_path))
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    example = example_inputs(checkpoint.input_names, checkpoint.task)
    model = float_graph(export_once(sited, GraphBody.of(checkpoint), example))
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


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("deberta-v2", "computes the scores from several parts"),
        ("modernbert", "computes an input of a residual add from several parts"),
    ],
)
def test_families_with_other_layers_are_refused(prepared, family, message) -> None:
    with pytest.raises(GraphError, match=f"BERT's layers, and node .*{message}.*Choose other"):
        read_encoder(float_graph(prepared(family).graph))


def test_fewer_bits_of_activations_are_refused(bert) -> None:
    model = lowered(bert, "linear", quantizer_options=QuantizerOptions(aprec=7))
    with pytest.raises(GraphError, match="uses only a part of its 256 codes"):
        read_encoder(model)


def replaced(model: ir.Model, name: str, array: Any) -> ir.Model:
    """Replace a constant."""
    model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return model
