"""The target `float`: the float model as it is."""

from __future__ import annotations

import pytest

import qdqbert
from qdqbert.encoders.quantize import Choices
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import make_plan
from qdqbert.graphs.writer import make_graph
from qdqbert.runtime.artifact import open_artifact


@pytest.fixture(scope="module")
def bert(prepared):
    return prepared("bert")


@pytest.fixture(scope="module")
def made(quantized, tmp_path_factory):
    """A folder with the graphs of `portable` and `float`."""
    source = quantized("sentence")
    directory = tmp_path_factory.mktemp("float") / "both"
    report = qdqbert.quantize(
        source.checkpoint,
        directory,
        targets=["float", "portable"],
        calibration_data=source.data,
        calibration=qdqbert.Calibration(samples=8),
        benchmark=False,
    )
    return directory, report


def test_its_graph_is_the_float_graph(bert) -> None:
    plan = make_plan(TARGETS["float"], bert.sited.sites, embeddings="int8")
    model = lower(bert.encoder, plan, Choices())
    expected = [node.op_type for node in make_graph(bert.encoder).graph]
    assert [node.op_type for node in model.graph] == expected
    assert "DequantizeLinear" not in expected


@pytest.mark.parametrize("recipe", [None, "linear", "full"])
def test_no_recipe_and_no_stored_quantizer_applies_to_it(bert, recipe) -> None:
    stored = bert.plan("portable").specs
    plan = make_plan(
        TARGETS["float"], bert.sited.sites, recipe=recipe, embeddings="int8", stored=stored
    )
    assert plan.recipe.name == "float"
    assert plan.specs == dict.fromkeys(stored)


def test_it_is_measured_next_to_int8(made) -> None:
    _, report = made
    by_engine = {each.engine: each for each in report.targets if each.target == "float"}
    float32 = by_engine["onnxruntime"]
    assert float32.recipe == "float"
    assert float32.fidelity.sqnr_db > 90
    assert float32.lowering.is_exact
    assert abs(float32.size_ratio - 1) < 0.01
    for each in by_engine.values():
        # OpenVINO's bf16 has 8 significant bits.
        assert each.fidelity.sqnr_db > 30


def test_an_int8_graph_of_the_same_folder_is_preferred(made) -> None:
    directory, _ = made
    artifact = open_artifact(directory)
    assert artifact.target_for("onnxruntime") == "portable"
    assert artifact.target_for("onnxruntime", "float") == "float"
