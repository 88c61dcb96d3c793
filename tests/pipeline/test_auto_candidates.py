"""What the target `auto` considers."""

from __future__ import annotations

import dataclasses

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import make_plan
from qdqbert.pipeline.auto import candidates
from qdqbert.pipeline.auto.candidates import (
    candidate_targets,
    distinct,
    missing_engines,
)
from qdqbert.verbs.quantize.options import QuantizeOptions


@pytest.fixture
def machine(monkeypatch):
    """Set the installed engines."""

    def change(*engines: str) -> None:
        monkeypatch.setattr(candidates, "is_installed", lambda engine: engine in engines)

    change("onnxruntime", "openvino", "native")
    return change


def names(found) -> list[tuple]:
    return [(each.name, *each.engines, each.recipe) for each in found]


def test_each_engine_has_its_recipes_and_the_float_model(machine) -> None:
    assert names(candidate_targets(None, "any")) == [
        ("native", "native", "linear"),
        ("native-dynamic", "native", "linear"),
        ("openvino", "openvino", "linear"),
        ("openvino", "openvino", "linear+matmul"),
        ("onnxruntime", "onnxruntime", "linear"),
        ("onnxruntime", "onnxruntime", "linear+qk"),
        ("float", "onnxruntime", "float"),
        ("float", "openvino", "float"),
    ]


def test_engines_that_are_not_installed_are_left_out(machine) -> None:
    machine("onnxruntime")
    assert {engine for each in candidate_targets(None, "any") for engine in each.engines} == {
        "onnxruntime"
    }
    assert missing_engines() == ["openvino", "native"]


def test_a_recipe_that_was_asked_for_is_that_of_all_candidates(machine) -> None:
    found = candidate_targets("full", "any")
    quantized = ["native", "native-dynamic", "openvino", "onnxruntime"]
    assert [each.name for each in found] == [*quantized, "float", "float"]
    assert {each.recipe for each in found} == {"full", "float"}
    # The native engine does not run it.
    found = candidate_targets("ffn", "any")
    assert [each.name for each in found] == ["openvino", "onnxruntime", "float", "float"]


@pytest.mark.parametrize(("weights_for", "is_full"), [("any", False), ("vnni", True)])
def test_weights_of_all_candidates_are_encoded_for_the_same_cpus(
    machine, weights_for, is_full
) -> None:
    found = candidate_targets(None, weights_for)
    quantized = [each for each in found if each.name != "float"]
    assert {each.adjacent_sum_limit is None for each in quantized} == {is_full}


def test_plans_that_make_the_same_graph_are_one_candidate(prepared) -> None:
    bert = prepared("bert")
    sites = bert.sited.sites
    plan = make_plan(TARGETS["openvino"], sites, embeddings="int8")
    same = make_plan(
        dataclasses.replace(TARGETS["openvino"], recipe="linear"), sites, embeddings="int8"
    )
    other = make_plan(TARGETS["openvino"], sites, recipe="linear+qk", embeddings="int8")
    elsewhere = make_plan(TARGETS["onnxruntime"], sites, embeddings="int8")
    assert distinct([plan, same, other, elsewhere]) == [plan, other, elsewhere]


def test_auto_is_alone() -> None:
    with pytest.raises(UserInputError, match="chooses one target itself, and 'openvino'") as caught:
        QuantizeOptions(model="model", targets=("openvino", "auto"))
    assert caught.value.argument == "targets"


def test_auto_measures() -> None:
    with pytest.raises(UserInputError, match="by which `targets=") as caught:
        QuantizeOptions(model="model", targets=("auto",), benchmark=False)
    assert caught.value.argument == "benchmark"
