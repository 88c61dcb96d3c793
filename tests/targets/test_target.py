from __future__ import annotations

import pytest

from qdqbert.errors import UnmatchedRuleError, UserInputError
from qdqbert.recipes import WEIGHT
from qdqbert.spec import Site, TensorSpec
from qdqbert.targets import TARGETS, target_named
from qdqbert.targets.target import Target, make_plan

INPUT = Site(name="a.dense._input_quantizer", kind="activation", sequence_axes=(1,))
LINEAR = Site(name="a.dense._weight_quantizer", kind="weight", channel_axis=0)
TABLE = Site(name="word_embeddings._weight_quantizer", kind="weight", channel_axis=1)
PLAIN = Target(name="plain", summary="for tests", engines=("onnxruntime",), recipe="linear")


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_target_is_found_by_its_name(name) -> None:
    assert target_named(name).name == name


def test_another_target_is_refused() -> None:
    known = "Target 'ort' is unknown. Known: portable, onnxruntime, onnxruntime-dynamic, openvino,"
    with pytest.raises(UserInputError, match=known):
        target_named("ort")


@pytest.mark.parametrize("target", [PLAIN, *TARGETS.values()], ids=lambda target: target.name)
def test_float_stays_float_on_every_target(target) -> None:
    assert target.adapt(INPUT, None) is None


def test_a_target_without_zero_points_makes_inputs_symmetric() -> None:
    target = Target(name="t", summary="", engines=(), recipe="linear", zero_points="nowhere")
    adapted = target.adapt(INPUT, TensorSpec(bits=7, signed=False, symmetric=False))
    assert adapted == TensorSpec(bits=7)
    unsigned = TensorSpec(signed=False)
    assert target.adapt(INPUT, unsigned) == unsigned


def test_a_target_with_zero_points_at_linears_keeps_these_alone() -> None:
    target = Target(name="t", summary="", engines=(), recipe="linear", zero_points="linears")
    affine = TensorSpec(signed=False, symmetric=False)
    assert target.adapt(INPUT, affine) == affine
    product = Site(name="a.matmul_q_input_quantizer", kind="activation", sequence_axes=(1,))
    assert target.adapt(product, affine) == TensorSpec()


def test_pairs_of_codes_are_limited_in_weights_of_linears_only() -> None:
    target = Target(name="t", summary="", engines=(), recipe="linear", adjacent_sum_limit=128)
    narrow = TensorSpec(narrow=True, axis=0)
    assert target.adapt(LINEAR, narrow).adjacent_sum_limit == 128
    assert target.adapt(TABLE, narrow).adjacent_sum_limit is None
    assert target.adapt(INPUT, TensorSpec()).adjacent_sum_limit is None
    assert PLAIN.adapt(LINEAR, narrow) == narrow


def test_a_plan_resolves_the_recipe_of_its_target(prepared) -> None:
    each = prepared("bert")
    plan = each.plan("openvino")
    assert plan.recipe.name == "linear"
    assert set(plan.specs) == {site.name for site in each.sited.sites}
    assert len(plan.activations) == 6 * len(each.layers)
    assert plan.specs["embeddings.word_embeddings._weight_quantizer"].axis == 1
    weight = plan.specs["encoder.layer.0.output.dense._weight_quantizer"]
    assert (weight.axis, weight.narrow, weight.adjacent_sum_limit) == (0, WEIGHT.narrow, 128)


@pytest.mark.parametrize(("embeddings", "is_float"), [("float", True), ("int8", False)])
def test_tables_are_left_in_float_on_wish(prepared, embeddings, is_float) -> None:
    plan = prepared("bert").plan("portable", embeddings=embeddings)
    tables = [spec for name, spec in plan.specs.items() if name.startswith("embeddings.")]
    assert [spec is None for spec in tables] == [is_float] * 3


def test_every_activation_of_qdqbert_needs_a_range(prepared) -> None:
    each = prepared("bert")
    assert len(each.plan("portable", "qdqbert").activations) == 14 * len(each.layers)


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(UserInputError, match="'best' is unknown"):
        make_plan(PLAIN, [INPUT], recipe="best", embeddings="int8")


def test_a_recipe_that_fits_no_site_is_refused() -> None:
    with pytest.raises(UnmatchedRuleError, match="embeddings"):
        make_plan(PLAIN, [INPUT, LINEAR], embeddings="int8")
