"""The INT8 encoder of a plan is the one that its graph with Q/DQ pairs describes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import transformers

import encoder_reference
from qdqbert.common.errors import CalibrationError, GraphError, UserInputError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.quantize import Choices, quantize_encoder
from qdqbert.encoders.sites import linear_layers_of
from qdqbert.engines.native.packed import pack_model
from qdqbert.evidence.lowering import check_lowering
from qdqbert.graphs.edit import constant_array
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.files import check_encoder, choices_of, save_encoder
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import make_plan
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.training.insert.sited import insert_quantizers_
from shared_tables import read_shared_table


@pytest.mark.parametrize(
    ("target", "recipe"),
    [("native", None), ("native", "full-smoothed"), ("native", "full")],
)
@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", "mpnet", "roberta"])
@pytest.mark.usual("bert-*", "roberta-native-full-smoothed")
def test_what_is_computed_is_what_the_graph_computes(
    prepared, run_plainly, family, target, recipe
) -> None:
    each = prepared(family)
    plan = each.plan(target, recipe)
    calibration = each.calibration(plan)
    made = quantize_encoder(
        encoder_of(each.checkpoint), plan.specs, choices_of(calibration, plan.specs)
    )
    inputs = encoder_reference.random_inputs((1, 9))
    graph = lower(each.encoder, plan, choices_of(calibration, plan.specs))
    encoder_reference.assert_outputs(made, run_plainly(graph, inputs), inputs, has_codes=True)


@pytest.mark.parametrize("recipe", [None, "full-smoothed"])
def test_codes_and_scales_are_those_of_the_graph(prepared, recipe) -> None:
    each = prepared("bert")
    plan = each.plan("native", recipe)
    calibration = each.calibration(plan)
    graph = lower(
        each.encoder,
        plan,
        choices_of(calibration, plan.specs),
    )
    made = quantize_encoder(
        encoder_of(each.checkpoint), plan.specs, choices_of(calibration, plan.specs)
    )
    arrays = {name: constant_array(value) for name, value in graph.graph.initializers.items()}
    for linear in (each for layer in made.layers for each, _ in linear_layers_of(layer)):
        np.testing.assert_array_equal(arrays[f"{linear.module}.weight_codes"].T, linear.weight)
        np.testing.assert_allclose(
            arrays[f"{linear.module}.weight_scale"], linear.weight_scale, rtol=1e-6
        )


@pytest.mark.parametrize(
    ("family", "target", "recipe"),
    [
        ("deberta-v2", "native", None),
        ("deberta-v2", "native-dynamic", None),
        ("modernbert", "native", "full"),
        ("modernbert", "native-dynamic", None),
    ],
)
def test_other_families_agree_with_pytorch_layer_by_layer(
    prepared, tmp_path, family, target, recipe
) -> None:
    each = prepared(family)
    plan = each.plan(target, recipe)
    path = tmp_path / "model.safetensors"
    save_encoder(encoder_of(each.checkpoint), plan, each.calibration(plan), path)
    check = check_lowering(path, each.references(plan), "native")
    assert check.worst_layer_db >= 40


@pytest.mark.parametrize("per_tensor", [False, True])
def test_parts_of_a_module_share_its_weight_quantizer(prepared, per_tensor) -> None:
    each = prepared("modernbert")
    options = QuantizerOptions(quant_per_tensor=per_tensor)
    plan = make_plan(
        TARGETS["native"], each.sited.sites, embeddings="int8", quantizer_options=options
    )
    attention = (
        quantize_encoder(
            encoder_of(each.checkpoint), plan.specs, choices_of(each.calibration(plan), plan.specs)
        )
        .layers[1]
        .attention
    )
    parts = (attention.query, attention.key, attention.value)
    weight = each.checkpoint.model.layers[1].attn.Wqkv.weight.detach().numpy()
    codes = np.concatenate([part.weight for part in parts])
    scales = np.concatenate([part.weight_scale for part in parts])
    assert (len(set(scales.tolist())) == 1) == per_tensor
    p = each.calibration(plan).scales["layers.1.attn.Wqkv._input_quantizer"].numpy()
    error = np.abs(codes * scales[:, None] * p - weight) / (scales[:, None] * p)
    assert error.max() <= 0.5 + 1e-3


def test_a_convolution_runs(save_tiny, tmp_path) -> None:
    save_tiny(tmp_path, "deberta-v2", conv_kernel_size=3, conv_act="gelu", num_hidden_layers=1)
    checkpoint = load_checkpoint(str(tmp_path))
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    plan = make_plan(TARGETS["native-dynamic"], sited.sites, embeddings="int8")
    made = quantize_encoder(encoder_of(checkpoint), plan.specs, Choices())
    assert made.convolution is not None
    assert made.layers[0].up.weight.dtype == np.int8


def test_a_tied_decoder_has_the_codes_of_the_table(save_tiny, tmp_path) -> None:
    save_tiny(tmp_path, "bert", transformers.AutoModelForMaskedLM)
    checkpoint = load_checkpoint(str(tmp_path), task="fill-mask")
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    plan = make_plan(TARGETS["native-dynamic"], sited.sites, embeddings="int8")
    made = quantize_encoder(encoder_of(checkpoint), plan.specs, Choices())
    graph = lower(encoder_of(checkpoint), plan, Choices())
    tables = (read_shared_table(each) for node in graph.graph for each in node.outputs)
    [expected] = {table.tobytes() for table in tables if table is not None}
    assert made.heads[0].steps[-1].weight.tobytes() == expected


def test_an_activation_without_a_range_is_refused(prepared) -> None:
    each = prepared("bert")
    plan = each.plan("native")
    with pytest.raises(CalibrationError, match=r"query\._input_quantizer` has no calibrated range"):
        pack_model(quantize_encoder(encoder_of(each.checkpoint), plan.specs, Choices()))


def test_codes_that_the_engine_does_not_have_are_refused(prepared) -> None:
    each = prepared("bert")
    plan = each.plan("native")
    name = "encoder.layer.0.output.dense._input_quantizer"
    narrow = dataclasses.replace(plan.specs[name], signed=True, symmetric=True, narrow=True)
    choices = choices_of(each.calibration(plan), plan.specs)
    made = quantize_encoder(encoder_of(each.checkpoint), {**plan.specs, name: narrow}, choices)
    with pytest.raises(GraphError, match=r"output\.dense.* has the codes -127 to 127"):
        pack_model(made)


def test_parts_that_the_engine_does_not_compute_are_refused_before_calibration(prepared) -> None:
    model = encoder_of(prepared("bert").checkpoint)
    first, second = model.layers
    other = dataclasses.replace(
        model, layers=(first, dataclasses.replace(second, activation="relu"))
    )
    check_encoder(TARGETS["native"], model)
    check_encoder(TARGETS["onnxruntime"], other)
    with pytest.raises(
        UserInputError, match=r"layer 1 differs.* run all models: portable, "
    ) as found:
        check_encoder(TARGETS["native-dynamic"], other)
    assert found.value.argument == "targets"
    assert "native" not in str(found.value).partition("models: ")[2]
