"""Outputs that are computed by a graph of their own from the last hidden states."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from encoder_reference import random_inputs
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.model import TAIL_STATES, EncoderModel, Tail
from qdqbert.encoders.quantize import Choices, quantize_encoder
from qdqbert.encoders.sites import sites_of
from qdqbert.engines.native.layers import LayerRunner
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import load_packed, save_packed
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import make_plan


def tail_of(model: EncoderModel, *, reads_states: bool) -> EncoderModel:
    """Return a model with the output `waves`: the sine of the states, times the mask."""
    source = TAIL_STATES if reads_states else "last_hidden_state"
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axes"], ["column"]),
        helper.make_node("Sin", [source], ["sine"]),
        helper.make_node("Mul", ["sine", "column"], ["waves"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tail",
        [
            helper.make_tensor_value_info(source, TensorProto.FLOAT, ["b", "s", "h"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["b", "s"]),
        ],
        [helper.make_tensor_value_info("waves", TensorProto.FLOAT, ["b", "s", "h"])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    tail = Tail(
        graph=proto.SerializeToString(), inputs=(source, "attention_mask"), outputs=("waves",)
    )
    return dataclasses.replace(model, tail=tail)


@pytest.fixture
def packed(prepared, tmp_path):
    """Return a function that packs a model with a tail, and returns its file."""
    model = encoder_of(prepared("bert").checkpoint)
    plan = make_plan(TARGETS["native-dynamic"], sites_of(model), embeddings="int8")

    def make(*, reads_states: bool) -> Path:
        changed = tail_of(model, reads_states=reads_states)
        made = pack_model(quantize_encoder(changed, plan.specs, Choices()))
        save_packed(made, tmp_path / "model.safetensors")
        return tmp_path / "model.safetensors"

    return make


@pytest.mark.parametrize("reads_states", [True, False])
def test_a_tail_reads_states_outputs_and_inputs(packed, reads_states) -> None:
    runner = NativeRunner(packed(reads_states=reads_states))
    assert runner.output_names == ("last_hidden_state", "waves")
    inputs = random_inputs((3, 9))
    outputs = runner.run(inputs)
    assert tuple(outputs) == runner.output_names
    expected = np.sin(outputs["last_hidden_state"]) * inputs["attention_mask"][..., None]
    np.testing.assert_allclose(outputs["waves"], expected, atol=1e-6)


def test_layers_that_are_run_one_by_one_have_a_tail_too(packed) -> None:
    path, inputs = packed(reads_states=True), random_inputs((3, 9))
    runner = LayerRunner(path, ["one", "two"])
    assert runner.output_names == ("one", "two", "last_hidden_state", "waves")
    states = np.zeros((3, 9, 32), np.float32)
    outputs = runner.run({**inputs, "one.forced": states, "two.forced": states})
    expected = np.sin(outputs["last_hidden_state"]) * inputs["attention_mask"][..., None]
    np.testing.assert_allclose(outputs["waves"], expected, atol=1e-6)


def test_a_damaged_tail_is_refused(packed) -> None:
    path = packed(reads_states=True)
    found = load_packed(path)
    arrays = {name: np.array(array) for name, array in found.arrays.items()}
    arrays["tail"][:] = -1
    save_packed(dataclasses.replace(found, arrays=arrays), path)
    with pytest.raises(CheckpointError, match="ONNX Runtime cannot load a head"):
        NativeRunner(path)
