from __future__ import annotations

import pytest

from qdqbert.common.errors import UnmatchedRuleError, UserInputError
from qdqbert.graphs.targets import TARGETS, target_named
from qdqbert.graphs.targets.target import (
    Plan,
    Target,
    check_recipe,
    make_plan,
    measured_plan,
    runs_recipe,
)
from qdqbert.quantization.recipes import (
    RECIPES,
    WEIGHT,
    QuantizerOptions,
    build_recipe,
    stored_recipe,
)
from qdqbert.quantization.spec import Site, TensorSpec

INPUT = Site(name="a.dense._input_quantizer", kind="activation", sequence_axes=(1,))
LINEAR = Site(name="a.dense._weight_quantizer", kind="weight", channel_axis=0)
TABLE = Site(name="word_embeddings._weight_quantizer", kind="weight", channel_axis=1)
NATIVE = TARGETS["native"]
PLAIN = Target(name="plain", summary="for tests", engines=("onnxruntime",), recipe="linear")


def test_a_target_is_found_by_its_name() -> None:
    assert [target_named(name).name for name in TARGETS] == list(TARGETS)


def test_an_unknown_target_is_refused() -> None:
    known = "Target 'ort' is unknown. Known: portable, onnxruntime, onnxruntime-dynamic, openvino,"
    with pytest.raises(UserInputError, match=known):
        target_named("ort")


def test_float_stays_float_on_every_target() -> None:
    assert {target.adapt(INPUT, None) for target in TARGETS.values()} == {None}


def test_a_target_without_zero_points_makes_inputs_symmetric() -> None:
    target = Target(name="t", summary="", engines=(), recipe="linear", zero_points="nowhere")
    adapted = target.adapt(INPUT, TensorSpec(bits=7, signed=False, symmetric=False))
    assert adapted == TensorSpec(bits=7)
    unsigned = TensorSpec(signed=False)
    assert target.adapt(INPUT, unsigned) == unsigned


def test_a_target_with_zero_points_at_linear_layers_keeps_only_these() -> None:
    target = Target(name="t", summary="", engines=(), recipe="linear", zero_points="linear_inputs")
    affine = TensorSpec(signed=False, symmetric=False)
    assert target.adapt(INPUT, affine) == affine
    matmul = Site(name="a.matmul_q_input_quantizer", kind="activation", sequence_axes=(1,))
    assert target.adapt(matmul, affine) == TensorSpec()


def test_a_target_without_unsigned_codes_makes_them_signed() -> None:
    target = Target(
        name="t",
        summary="",
        engines=(),
        recipe="linear",
        zero_points="linear_inputs",
        unsigned=False,
    )
    unsigned = TensorSpec(bits=7, signed=False)
    matmul = Site(name="a.matmul_a_input_quantizer", kind="activation", sequence_axes=(2, 3))
    assert target.adapt(matmul, unsigned) == TensorSpec(bits=7)
    # Biases absorb the middle of these codes like a zero point.
    assert target.adapt(INPUT, unsigned) == unsigned
    affine = TensorSpec(signed=False, symmetric=False)
    assert target.adapt(INPUT, affine) == affine


def test_weights_are_rounded_for_quantized_inputs_only() -> None:
    weight, inputs = TensorSpec(narrow=True, axis=0), TensorSpec()
    specs = {
        "a.dense._weight_quantizer": weight,
        "a.dense._input_quantizer": inputs,
        "b.dense._weight_quantizer": weight,
        "b.dense._input_quantizer": None,
        "c.dense._weight_quantizer": None,
        "c.dense._input_quantizer": inputs,
        "word_embeddings._weight_quantizer": weight,
    }
    plan = Plan(target=PLAIN, recipe=build_recipe("linear"), specs=specs)
    assert plan.rounded_weights == {("a.dense._weight_quantizer", weight)}


def test_adjacent_codes_are_limited_in_weights_of_linear_layers_only() -> None:
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


def test_embedding_tables_can_be_left_in_float(prepared) -> None:
    for embeddings, is_float in (("float", True), ("int8", False)):
        plan = prepared("bert").plan("portable", embeddings=embeddings)
        tables = [spec for name, spec in plan.specs.items() if name.startswith("embeddings.")]
        assert [spec is None for spec in tables] == [is_float] * 3


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, "INT8"),
        ({"wprec": 4}, "W4A8"),
        ({"aprec": 6}, "W8A6"),
        ({"wprec": 2, "aprec": 3, "quant_per_tensor": True}, "W2A3"),
        ({"wprec": 4, "quant_disable_keyword": ["input_quantizer"]}, "W4"),
        ({"quant_disable": True}, "INT8"),
    ],
)
def test_a_plan_names_the_widths_of_its_codes(prepared, changes, codes) -> None:
    sites, options = prepared("bert").sited.sites, QuantizerOptions.from_dict(changes)
    plan = make_plan(
        TARGETS["portable"], sites, recipe="full", embeddings="int8", quantizer_options=options
    )
    assert plan.codes == codes


def test_several_widths_are_a_span() -> None:
    specs = {"a._weight_quantizer": TensorSpec(bits=4), "b._weight_quantizer": TensorSpec(bits=2)}
    plan = Plan(target=TARGETS["portable"], recipe=build_recipe("full"), specs=specs)
    assert plan.codes == "W2-4"


def test_every_activation_of_the_full_recipe_needs_a_range(prepared) -> None:
    each = prepared("bert")
    assert len(each.plan("portable", "full").activations) == 14 * len(each.layers)


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(UserInputError, match="'best' is unknown"):
        make_plan(PLAIN, [INPUT], recipe="best", embeddings="int8")


def test_a_rule_that_matches_no_site_is_refused() -> None:
    with pytest.raises(UnmatchedRuleError, match=r"embed\*s"):
        make_plan(PLAIN, [INPUT, LINEAR], embeddings="int8")


def test_recipes_that_a_target_cannot_run_are_refused_before_anything_is_done() -> None:
    runnable = {
        name: [recipe for recipe in RECIPES if runs_recipe(target, build_recipe(recipe))]
        for name, target in TARGETS.items()
    }
    assert runnable.pop("qordered") == ["qordered"]
    assert runnable.pop("tensorrt") == [name for name in RECIPES if name != "qordered"]
    with_linear = [name for name in RECIPES if name not in ("ffn", "qordered")]
    assert runnable.pop("native") == runnable.pop("native-dynamic") == with_linear
    assert all(names == list(RECIPES) for names in runnable.values())
    for target, recipe, others in (
        ("tensorrt", "qordered", "ffn, linear, linear"),
        ("qordered", "full", "qordered"),
        ("native", "ffn", "linear"),
    ):
        message = f"Target '{target}' cannot run recipe '{recipe}' .* another `recipe`: {others}"
        with pytest.raises(UserInputError, match=message) as caught:
            make_plan(TARGETS[target], [INPUT, LINEAR, TABLE], recipe=recipe, embeddings="int8")
        assert caught.value.argument == "recipe"


@pytest.mark.parametrize(
    ("options", "misfit"),
    [
        ({"quant_disable_keyword": ("query",)}, "self.query._input_quantizer' is in float"),
        ({"quant_disable": True}, "_quantizer' is in float"),
        ({"aprec": 7}, "_input_quantizer' has 7 bits"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_target_for_linear_layers_runs_all_of_them_in_int8(prepared, options, misfit) -> None:
    each, changes = prepared("bert"), QuantizerOptions(**options)
    with pytest.raises(UserInputError, match=f"{misfit}. Pass .* without `aprec`") as caught:
        make_plan(NATIVE, each.sited.sites, embeddings="int8", quantizer_options=changes)
    assert caught.value.argument == "targets"


def test_a_target_for_linear_layers_refuses_other_stored_quantizers(prepared) -> None:
    each = prepared("bert")
    stored = dict(each.plan("portable", "ffn").specs)
    with pytest.raises(UserInputError, match=r"query._input_quantizer' is in float"):
        make_plan(NATIVE, each.sited.sites, embeddings="int8", stored=stored)
    for recipe, count in (("linear", 6), ("full", 14)):
        stored = dict(each.plan("portable", recipe).specs)
        made = make_plan(NATIVE, each.sited.sites, embeddings="float", stored=stored)
        assert len(made.activations) == count * len(each.layers)


def test_the_recipe_that_placed_stored_quantizers_decides_too() -> None:
    check_recipe(TARGETS["qordered"], stored_recipe(placed_by="qordered"))
    with pytest.raises(UserInputError, match="cannot run recipe 'stored'"):
        check_recipe(TARGETS["tensorrt"], stored_recipe(placed_by="qordered"))
    with pytest.raises(UserInputError, match="cannot run recipe 'stored'"):
        check_recipe(TARGETS["qordered"], stored_recipe())


def test_a_graph_that_an_engine_runs_is_measured_as_it_is(prepared) -> None:
    for name in ("portable", "tensorrt"):
        plan = prepared("bert").plan(name)
        assert measured_plan(plan) is plan
