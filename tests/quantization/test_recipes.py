from __future__ import annotations

from collections import Counter

import pytest
from transformers import AutoConfig, AutoModel

from bert_sites import LINEARS, sites_of_bert
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.families import quantized_family
from qdqbert.quantization.recipes import (
    AFFINE,
    PROBABILITIES,
    RECIPES,
    SYMMETRIC,
    WEIGHT,
    build_recipe,
)
from qdqbert.quantization.spec import Site, resolve
from qdqbert.training.insert.sited import insert_quantizers_

AFTER_NORM = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "intermediate.dense",
)
LINEAR_SITES = {
    f"{linear}.{quantizer}"
    for linear in LINEARS
    for quantizer in ("_input_quantizer", "_weight_quantizer")
}
QDQBERT_SITES = LINEAR_SITES | {
    "attention.self.matmul_q_input_quantizer",
    "attention.self.matmul_k_input_quantizer",
    "attention.self.matmul_v_input_quantizer",
    "attention.self.matmul_a_input_quantizer",
    "attention.output.add_local_input_quantizer",
    "attention.output.add_residual_input_quantizer",
    "output.add_local_input_quantizer",
    "output.add_residual_input_quantizer",
}
TABLE_SITES = {
    f"embeddings.{table}._weight_quantizer"
    for table in ("word_embeddings", "position_embeddings", "token_type_embeddings")
}


# Linears by what they read: a LayerNorm, GELU, anything else.
OTHER_FAMILIES = {
    "deberta-v2": (
        {
            "attention.self.query_proj",
            "attention.self.key_proj",
            "attention.self.value_proj",
            "intermediate.dense",
        },
        {"output.dense"},
        set(),
        {"attention.output.dense"},
    ),
    "distilbert": (
        {"attention.q_lin", "attention.k_lin", "attention.v_lin", "ffn.lin1"},
        {"ffn.lin2"},
        set(),
        {"attention.out_lin"},
    ),
    # GELU's output times a gate has both signs.
    "modernbert": ({"attn.Wqkv", "mlp.Wi"}, set(), {"mlp.Wo"}, {"attn.Wo"}),
    "mpnet": (
        {"attention.attn.q", "attention.attn.k", "attention.attn.v", "intermediate.dense"},
        {"output.dense"},
        set(),
        {"attention.attn.o"},
    ),
}
# Recipes of outputs are about sites that are put in for them alone.
FFN_SITES = {site for site in LINEAR_SITES if "attention" not in site}
PRODUCT_SITES = {site for site in QDQBERT_SITES if ".matmul_" in site}
SITES = {
    "ffn": FFN_SITES,
    "linear": LINEAR_SITES,
    "linear+qk": LINEAR_SITES
    | {f"attention.self.matmul_{each}_input_quantizer" for each in ("q", "k")},
    "linear+matmul": LINEAR_SITES | PRODUCT_SITES,
    "full": QDQBERT_SITES,
    "full-smoothed": QDQBERT_SITES,
}
OF_INPUTS = ("linear", "full")


def sites_of_family(model_type: str, **changes: object) -> tuple[Site, ...]:
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
    config = AutoConfig.for_model(model_type, **sizes, pad_token_id=0, **changes)
    return insert_quantizers_(AutoModel.from_config(config), quantized_family(model_type)).sites


def inputs_of_a_layer(names: set[str]) -> set[str]:
    """Return the linear layers whose inputs are among these sites, by path in the layer."""
    return {
        name.partition(".0.")[2].removesuffix("._input_quantizer")
        for name in names
        if name.endswith("._input_quantizer")
    }


@pytest.fixture(scope="module")
def two_layers() -> tuple[Site, ...]:
    return sites_of_bert(2)


def quantized_sites(name: str, sites: tuple[Site, ...], embeddings: str = "int8") -> set[str]:
    resolved = resolve(build_recipe(name, embeddings=embeddings).rules, sites)
    return {site for site, spec in resolved.items() if spec is not None}


def by_layer(names: set[str]) -> dict[str, set[str]]:
    layers: dict[str, set[str]] = {}
    for name in names:
        if name.startswith("encoder.layer."):
            index, _, rest = name.removeprefix("encoder.layer.").partition(".")
            layers.setdefault(index, set()).add(rest)
    return layers


@pytest.mark.parametrize(
    ("name", "count"),
    {
        "ffn": 4,
        "linear": 12,
        "linear+qk": 14,
        "linear+matmul": 16,
        "full": 20,
        "full-smoothed": 20,
    }.items(),
)
def test_recipe_quantizes_exactly_these_sites_of_each_layer(name, count, two_layers) -> None:
    expected = SITES[name]
    assert len(expected) == count
    quantized = quantized_sites(name, two_layers)
    assert by_layer(quantized) == {"0": expected, "1": expected}
    assert len(quantized - TABLE_SITES) == 2 * len(expected)


def test_the_full_recipe_has_240_quantizers_in_12_layers() -> None:
    quantized = quantized_sites("full", sites_of_bert(12), embeddings="float")
    assert Counter(len(names) for names in by_layer(quantized).values()) == {20: 12}
    assert len(quantized) == 240


@pytest.mark.parametrize("name", OF_INPUTS)
def test_embeddings_are_quantized_only_as_int8(name, two_layers) -> None:
    assert quantized_sites(name, two_layers, "int8") >= TABLE_SITES
    assert not quantized_sites(name, two_layers, "float") & TABLE_SITES


@pytest.mark.parametrize("name", OF_INPUTS)
def test_weights_are_narrow_int8_with_a_scale_per_channel(name, two_layers) -> None:
    resolved = resolve(build_recipe(name).rules, two_layers)
    axes = {site.name: site.channel_axis for site in two_layers}
    for site, spec in resolved.items():
        if site.endswith("._weight_quantizer"):
            assert spec is not None
            assert (spec.qmin, spec.qmax) == (-127, 127)
            # Output channels of linear layers, hidden channels of tables.
            assert spec.axis == axes[site] == (1 if site in TABLE_SITES else 0)


@pytest.mark.parametrize(
    ("name", "affine_inputs"),
    [
        ("full", set()),
        ("full-smoothed", {site for site in QDQBERT_SITES if "_input_" in site}),
        ("linear", {f"{linear}._input_quantizer" for linear in LINEARS}),
        (
            "ffn",
            {f"{linear}._input_quantizer" for linear in ("intermediate.dense", "output.dense")},
        ),
        ("linear+qk", {f"{linear}._input_quantizer" for linear in LINEARS}),
        ("linear+matmul", {f"{linear}._input_quantizer" for linear in LINEARS}),
    ],
)
def test_inputs_are_symmetric_or_affine_by_recipe(name, affine_inputs, two_layers) -> None:
    resolved = resolve(build_recipe(name).rules, two_layers)
    specs = {
        site: spec
        for site, spec in resolved.items()
        if spec and not site.endswith("weight_quantizer")
    }
    affine = {site for site, spec in specs.items() if spec == AFFINE}
    assert by_layer(affine) == ({"0": affine_inputs, "1": affine_inputs} if affine_inputs else {})
    others = {site: spec for site, spec in specs.items() if site not in affine}
    probabilities = {site for site in others if ".matmul_a_" in site}
    assert {others[site] for site in probabilities} <= {PROBABILITIES}
    assert {others[site] for site in others.keys() - probabilities} <= {SYMMETRIC}


@pytest.mark.parametrize("name", [*OF_INPUTS, "full-smoothed"])
def test_smoothing_matches_inputs_of_linear_layers_except_of_attention(name, two_layers) -> None:
    smoothing = build_recipe(name).smoothing
    assert smoothing is not None
    matched = {site.name for site in two_layers if smoothing.matches(site)}
    after_norm = () if name == "full" else AFTER_NORM
    wide = {f"{linear}._input_quantizer" for linear in (*after_norm, "output.dense")}
    if name == "full-smoothed":
        wide |= {site for site in QDQBERT_SITES if ".add_" in site}
    assert by_layer(matched) == {"0": wide, "1": wide}


@pytest.mark.parametrize("name", OF_INPUTS)
@pytest.mark.parametrize("family", sorted(OTHER_FAMILIES))
def test_other_families_are_quantized_in_the_same_way(name, family) -> None:
    sites = sites_of_family(family)
    recipe = build_recipe(name)
    resolved = resolve(recipe.rules, sites)
    left = {site for site, spec in resolved.items() if spec is None}
    assert all(".matmul_" in site or ".add_" in site for site in left)
    assert bool(left) is (name != "full")
    after_norm, activated, gated, others = OTHER_FAMILIES[family]
    smoothed = {site.name for site in sites if recipe.smoothing and recipe.smoothing.matches(site)}
    assert inputs_of_a_layer(smoothed) == (
        activated | gated if name == "full" else after_norm | activated | gated
    )
    affine = {site for site, spec in resolved.items() if spec == AFFINE}
    assert (
        inputs_of_a_layer(affine)
        == {
            "full": set(),
            "linear": after_norm | activated | gated | others,
        }[name]
    )


def test_keys_and_values_of_another_model_are_not_smoothed() -> None:
    sites = sites_of_family("bert", is_decoder=True, add_cross_attention=True)
    smoothing = build_recipe("linear").smoothing
    smoothed = {site.name for site in sites if smoothing.matches(site) and ".cross" in site.name}
    assert inputs_of_a_layer(smoothed) == {"crossattention.self.query"}


def test_a_recipe_has_the_name_that_was_asked_for() -> None:
    for name in RECIPES:
        recipe = build_recipe(name)
        assert recipe.name == name
        assert recipe.summary


def test_constants_have_the_codes_of_their_names() -> None:
    assert (WEIGHT.qmin, WEIGHT.qmax, WEIGHT.axis) == (-127, 127, 0)
    assert (SYMMETRIC.qmin, SYMMETRIC.qmax, SYMMETRIC.axis) == (-128, 127, None)
    assert (AFFINE.qmin, AFFINE.qmax, AFFINE.symmetric) == (0, 255, False)
    assert (PROBABILITIES.qmin, PROBABILITIES.qmax, PROBABILITIES.symmetric) == (0, 255, True)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(
        UserInputError,
        match=r"'qdq' is unknown\. Known: ffn, full, full-smoothed, linear, linear\+",
    ):
        build_recipe("qdq")
