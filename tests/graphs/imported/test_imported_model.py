from __future__ import annotations

import weakref

import numpy as np
import onnx
import pytest
from onnx import helper

from qdqbert.encoders.quantize import Choices
from qdqbert.encoders.sites import linear_layers_of, sites_of
from qdqbert.engines.registry import open_runner
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.imported.imported_model import import_onnx
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import make_plan
from qdqbert.quantization.spec import Range

TASK = "text-classification"


@pytest.fixture
def many_outputs(exported, tmp_path):
    """A classifier that also returns its probabilities, their largest index and a hidden state."""
    model = onnx.load(exported("bert"))
    norm = [node for node in model.graph.node if "layer.0/output/LayerNorm" in node.output[0]][-1]
    made = {
        "probabilities": (onnx.TensorProto.FLOAT, ["batch", 2]),
        "tags": (onnx.TensorProto.INT64, ["batch"]),
        norm.output[0]: (onnx.TensorProto.FLOAT, ["batch", "sequence", 32]),
    }
    model.graph.node.extend(
        [
            helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
            helper.make_node("ArgMax", ["logits"], ["tags"], axis=-1, keepdims=0),
        ]
    )
    for name, (kind, shape) in made.items():
        model.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    path = tmp_path / "many.onnx"
    onnx.save(model, path)
    return path, norm.output[0]


def test_outputs_that_the_task_does_not_read_are_kept_for_every_target(
    many_outputs, tmp_path, padded_inputs
) -> None:
    path, state = many_outputs
    imported = import_onnx(path, task=TASK, input_names={}, scratch=tmp_path)
    assert imported.output_names == ("logits",)
    assert imported.runner.output_names == ("logits", "probabilities", "tags", state)
    expected = imported.runner.run(padded_inputs)
    encoder = imported.read(longest=64)
    names = ("logits", "probabilities", "tags")
    assert any(f"{', '.join(names[1:])}. They are kept" in each for each in imported.notices)
    assert any(f"{state}. They are left out" in each for each in imported.notices)
    sites = sites_of(encoder)
    ranges = {
        site.name: Range(low=-4.0, high=4.0, amax=4.0)
        for site in sites
        if site.kind == "activation"
    }
    for target in TARGETS.values():
        if not target.engines or "onnxruntime" not in target.engines:
            continue
        plan = make_plan(target, sites, recipe="linear", embeddings="int8")
        lowered = tmp_path / f"{target.name}.onnx"
        save_graph(lower(encoder, plan, Choices(ranges=ranges)), lowered)
        outputs = open_runner("onnxruntime", lowered).run(padded_inputs)
        assert tuple(outputs) == names
        np.testing.assert_array_equal(outputs["tags"], outputs["logits"].argmax(-1))
        assert {name: each.shape for name, each in outputs.items()} == {
            name: expected[name].shape for name in names
        }
        # Quantized with a range that is a guess.
        pair = (each["probabilities"].ravel() for each in (outputs, expected))
        assert np.corrcoef(*pair)[0, 1] > 0.9


def test_an_output_with_an_unusual_name_can_be_named(many_outputs, tmp_path) -> None:
    path, _ = many_outputs
    names = {"logits": "probabilities"}
    imported = import_onnx(path, task=TASK, input_names={}, output_names=names, scratch=tmp_path)
    tail = imported.read(longest=64).tail
    assert tail is not None
    assert tail.outputs[0] == "logits"
    assert "Softmax" in {node.op_type for node in onnx.load_from_string(tail.graph).graph.node}


def test_a_released_runner_is_loaded_again(exported, tmp_path, padded_inputs) -> None:
    runner = import_onnx(exported("bert"), task=TASK, input_names={}, scratch=tmp_path).runner
    expected = runner.run(padded_inputs)["logits"]
    runner.release()
    np.testing.assert_array_equal(runner.run(padded_inputs)["logits"], expected)


def test_nothing_of_a_file_stays_in_memory_but_its_weights(exported, tmp_path) -> None:
    imported = import_onnx(exported("bert"), task=TASK, input_names={}, scratch=tmp_path)
    graph = weakref.ref(imported.graph)
    encoder = imported.read(longest=64)
    assert graph() is None
    for linear, _ in linear_layers_of(encoder.layers[0]):
        assert linear.weight.base is None
