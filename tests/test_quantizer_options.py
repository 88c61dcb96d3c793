from __future__ import annotations

import dataclasses
import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel

import qdqbert
from bert_sites import LINEARS, sites_of_bert
from qdqbert.common.errors import QdqBertError, SpecError, UnmatchedRuleError
from qdqbert.encoders.checkpoint.configuration import quantizer_options_of
from qdqbert.encoders.families import FAMILIES, quantized_family
from qdqbert.quantization.recipes import QKV_WEIGHTS, QuantizerOptions, build_recipe, fused_groups
from qdqbert.quantization.spec import Range, Site, TensorSpec, resolve
from qdqbert.training.insert.sited import insert_quantizers_


@pytest.fixture(scope="module")
def two_layers() -> tuple[Site, ...]:
    return sites_of_bert(2)


@pytest.fixture(scope="module")
def twelve_layers() -> tuple[Site, ...]:
    return sites_of_bert(12)


def applied(
    quantizer_options: QuantizerOptions,
    sites: tuple[Site, ...],
    recipe: str = "full",
    embeddings: str = "int8",
) -> dict[str, TensorSpec | None]:
    specs = resolve(build_recipe(recipe, embeddings=embeddings).rules, sites)
    return quantizer_options.apply(specs, sites)


def left_float(
    quantizer_options: QuantizerOptions, sites: tuple[Site, ...], recipe: str = "full"
) -> set[str]:
    return {
        name for name, spec in applied(quantizer_options, sites, recipe).items() if spec is None
    }


def names_with(sites: tuple[Site, ...], *parts: str) -> set[str]:
    return {site.name for site in sites if any(part in site.name for part in parts)}


def ranges_for(sites: tuple[Site, ...]) -> dict[str, Range]:
    """A range for each activation, of which no two are equal."""
    activations = [site.name for site in sites if site.kind == "activation"]
    return {
        name: Range(amax=2.0 + index, low=-1.0 - index / 2, high=2.0 + index)
        for index, name in enumerate(activations)
    }


# Precision


def test_the_default_switches_change_nothing(two_layers) -> None:
    specs = resolve(build_recipe("full").rules, two_layers)
    assert QuantizerOptions().apply(specs, two_layers) == specs
    ranges = ranges_for(two_layers)
    assert QuantizerOptions().adjust(ranges, two_layers) == ranges


@pytest.mark.parametrize("bits", range(2, 9))
def test_wprec_sets_only_the_bits_of_weights_of_layers(two_layers, bits) -> None:
    weights = {site.name for site in two_layers if (site.kind, site.group) == ("weight", "layer")}
    for name, spec in applied(QuantizerOptions(wprec=bits), two_layers).items():
        assert spec.bits == (bits if name in weights else 8)
        if name in weights:
            assert (spec.qmin, spec.qmax) == (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("recipe", ["full", "linear"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_aprec_sets_only_the_bits_of_activations(two_layers, recipe, bits) -> None:
    before = applied(QuantizerOptions(), two_layers, recipe)
    kinds = {site.name: site.kind for site in two_layers}
    for name, spec in applied(QuantizerOptions(aprec=bits), two_layers, recipe).items():
        if before[name] is None:
            assert spec is None
        elif kinds[name] == "activation":
            assert spec == dataclasses.replace(before[name], bits=bits)
        else:
            assert spec == before[name]


def test_quant_per_tensor_applies_to_linear_layers_and_not_to_embeddings(
    two_layers,
) -> None:
    specs = applied(QuantizerOptions(quant_per_tensor=True), two_layers)
    for site in two_layers:
        if site.kind == "weight":
            table = site.name.startswith("embeddings.")
            assert specs[site.name].axis == (1 if table else None), site.name
    assert (
        applied(QuantizerOptions(), two_layers)[
            "encoder.layer.0.output.dense._weight_quantizer"
        ].axis
        == 0
    )


# Patterns


def test_quant_disable_leaves_everything_in_float(two_layers) -> None:
    assert left_float(QuantizerOptions(quant_disable=True), two_layers) == {
        site.name for site in two_layers
    }


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("query", ["query._"]),
        ("matmul_a", ["matmul_a_input"]),
        ("add_residual", ["add_residual"]),
        (r"layer\.1\.", ["layer.1."]),
        (r"intermediate\.dense$", ["intermediate.dense._"]),
        (r"_weight_quantizer$", ["_weight_quantizer"]),
        (r"self\.(key|value)", ["self.key._", "self.value._"]),
        ("embeddings", ["embeddings."]),
        ("word_embeddings$", ["word_embeddings."]),
        ("_quantizer", ["_quantizer"]),
        ("", [""]),
    ],
    ids=[
        "linear",
        "product",
        "add",
        "layer",
        "end-of-a-linear-layers-name",
        "end-of-a-quantizers-name",
        "alternatives",
        "tables",
        "end-of-a-tables-name",
        "all",
        "empty",
    ],
)
def test_a_keyword_is_searched_as_a_regular_expression(two_layers, pattern, parts) -> None:
    found = left_float(QuantizerOptions(quant_disable_keyword=(pattern,)), two_layers)
    assert found == names_with(two_layers, *parts)
    assert found


def test_the_end_of_an_attentions_name_matches_no_other_quantizer(two_layers) -> None:
    # `attention.self` is not a linear layer: its four quantizers have names of their own.
    with pytest.raises(UnmatchedRuleError, match=r"attention\\\\.self\$"):
        left_float(QuantizerOptions(quant_disable_keyword=(r"attention\.self$",)), two_layers)


def test_a_digit_matches_all_layers_with_that_digit(twelve_layers) -> None:
    found = left_float(QuantizerOptions(quant_disable_keyword=("1",)), twelve_layers)
    assert found == names_with(twelve_layers, "layer.1.", "layer.10.", "layer.11.")
    assert len(found) == 60


def test_several_keywords_add_up(two_layers) -> None:
    quantizer_options = QuantizerOptions(quant_disable_keyword=("query", "add_local"))
    assert left_float(quantizer_options, two_layers) == names_with(
        two_layers, "query._", "add_local"
    )


def test_a_keyword_may_be_a_plain_string() -> None:
    assert QuantizerOptions(quant_disable_keyword="query") == QuantizerOptions(
        quant_disable_keyword=("query",)
    )
    assert QuantizerOptions(quant_disable_keyword=["a", "b"]).quant_disable_keyword == ("a", "b")


@pytest.mark.parametrize("linear", LINEARS)
def test_a_layer_module_is_disabled_in_every_layer(twelve_layers, linear) -> None:
    found = left_float(
        QuantizerOptions(quant_disable_layer_module=linear.replace(".", r"\.")), twelve_layers
    )
    names = (f".{linear}._input_quantizer", f".{linear}._weight_quantizer")
    assert found == {f"encoder.layer.{layer}{name}" for layer in range(12) for name in names}


def test_a_layer_module_follows_the_layers_number(two_layers) -> None:
    # `output.dense` alone would also find `attention.output.dense`.
    found = left_float(QuantizerOptions(quant_disable_layer_module="output.dense"), two_layers)
    assert len(found) == 4
    assert not any("attention" in name for name in found)
    keyword = left_float(QuantizerOptions(quant_disable_keyword=("output.dense",)), two_layers)
    assert len(keyword) == 8


def test_a_layer_module_can_be_a_product_or_a_whole_block(two_layers) -> None:
    block = left_float(QuantizerOptions(quant_disable_layer_module="attention"), two_layers)
    assert block == names_with(two_layers, ".attention.")
    product = left_float(
        QuantizerOptions(quant_disable_layer_module="attention.self.matmul"), two_layers
    )
    assert product == names_with(two_layers, ".matmul_")


def test_only_what_is_enabled_after_a_disable_is_quantized(two_layers) -> None:
    quantizer_options = QuantizerOptions(
        quant_disable=True, quant_enable_layer_module="attention.self"
    )
    quantized = {site.name for site in two_layers} - left_float(quantizer_options, two_layers)
    assert quantized == names_with(two_layers, "attention.self.")


@pytest.mark.parametrize(
    "disable",
    [{"quant_disable_keyword": ("attention",)}, {"quant_disable_layer_module": "attention"}],
    ids=["keyword", "layer-module"],
)
def test_enabling_comes_after_each_kind_of_disabling(two_layers, disable) -> None:
    quantizer_options = QuantizerOptions(**disable, quant_enable_layer_module="attention.self.key")
    expected = names_with(two_layers, ".attention.") - names_with(two_layers, ".key._")
    assert left_float(quantizer_options, two_layers) == expected


def test_enabling_quantizes_nothing_that_the_recipe_has_not(two_layers) -> None:
    quantizer_options = QuantizerOptions(quant_disable=True, quant_enable_layer_module="attention")
    specs = applied(quantizer_options, two_layers, "linear")
    assert {name for name, spec in specs.items() if spec} == {
        name
        for name in names_with(two_layers, ".attention.")
        if ".matmul_" not in name and ".add_" not in name
    }


def test_what_stays_on_keeps_its_precision(two_layers) -> None:
    quantizer_options = QuantizerOptions(
        wprec=4, aprec=5, quant_disable=True, quant_enable_layer_module="output"
    )
    specs = applied(quantizer_options, two_layers)
    assert specs["encoder.layer.1.output.dense._input_quantizer"].bits == 5
    assert specs["encoder.layer.1.output.dense._weight_quantizer"].bits == 4
    assert specs["encoder.layer.1.attention.output.dense._weight_quantizer"] is None


@pytest.mark.parametrize(
    "switch", ["quant_disable_keyword", "quant_disable_layer_module", "quant_enable_layer_module"]
)
def test_the_error_for_a_pattern_without_a_match_names_it(two_layers, switch) -> None:
    value = ("qeury",) if switch == "quant_disable_keyword" else "qeury"
    with pytest.raises(UnmatchedRuleError) as caught:
        applied(QuantizerOptions(**{switch: value}), two_layers)
    message = str(caught.value)
    assert f"`{switch}`" in message
    assert "qeury" in message
    assert "none of the 43 quantizers" in message
    assert "encoder.layer" in message or "embeddings" in message


def test_one_keyword_without_a_match_among_several_is_an_error(two_layers) -> None:
    with pytest.raises(UnmatchedRuleError, match="'no_such'"):
        applied(QuantizerOptions(quant_disable_keyword=("query", "no_such")), two_layers)


def test_a_pattern_for_sites_that_the_recipe_leaves_in_float_is_an_error(two_layers) -> None:
    with pytest.raises(UnmatchedRuleError, match="matmul_"):
        applied(QuantizerOptions(quant_disable_keyword=("matmul_",)), two_layers, "linear")


@pytest.mark.parametrize("family", sorted(name for name, each in FAMILIES.items() if each.training))
def test_layer_modules_are_found_in_each_family(family) -> None:
    sizes = {"hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 11}
    config = AutoConfig.for_model(family, **sizes, pad_token_id=0)
    sites = insert_quantizers_(AutoModel.from_config(config), quantized_family(family)).sites
    found = left_float(QuantizerOptions(quant_disable_layer_module="att"), sites)
    expected = {site.name for site in sites if ".att" in site.name and "embed" not in site.name}
    assert found == expected
    assert found


# Ranges


def test_clip_gelu_bounds_all_ends_behind_gelu_and_nothing_else(two_layers) -> None:
    ranges = ranges_for(two_layers)
    adjusted = QuantizerOptions(clip_gelu=1.5).adjust(ranges, two_layers)
    behind = {site.name for site in two_layers if site.source == "activation"}
    assert behind == {f"encoder.layer.{layer}.output.dense._input_quantizer" for layer in range(2)}
    for name, chosen in adjusted.items():
        if name in behind:
            low = max(ranges[name].low, -1.5)
            assert chosen == Range(amax=1.5, low=low, high=1.5)
        else:
            assert chosen == ranges[name]


def test_clip_gelu_widens_no_range(two_layers) -> None:
    ranges = ranges_for(two_layers)
    assert QuantizerOptions(clip_gelu=1000.0).adjust(ranges, two_layers) == ranges


def test_fuse_qkv_gives_the_hull_of_the_three_ranges_in_each_layer(two_layers) -> None:
    ranges = ranges_for(two_layers)
    adjusted = QuantizerOptions(fuse_qkv=True).adjust(ranges, two_layers)
    for layer in range(2):
        path = f"encoder.layer.{layer}.attention.self"
        group = [f"{path}.matmul_{letter}_input_quantizer" for letter in "qkv"]
        hull = Range(
            amax=max(ranges[name].amax for name in group),
            low=min(ranges[name].low for name in group),
            high=max(ranges[name].high for name in group),
        )
        assert [adjusted[name] for name in group] == 3 * [hull]
    changed = {name for name in ranges if adjusted[name] != ranges[name]}
    assert all(name.endswith(("_q_input_quantizer", "_k_input_quantizer", "_v_input_quantizer"))
               for name in changed)  # fmt: skip
    assert len(changed) == 4


def test_fuse_qkv_skips_an_incomplete_group(two_layers) -> None:
    ranges = ranges_for(two_layers)
    del ranges["encoder.layer.0.attention.self.matmul_k_input_quantizer"]
    adjusted = QuantizerOptions(fuse_qkv=True).adjust(ranges, two_layers)
    path = "encoder.layer.0.attention.self.matmul_q_input_quantizer"
    assert adjusted[path] == ranges[path]


def test_adjusting_does_not_change_the_ranges_it_is_given(two_layers) -> None:
    ranges = ranges_for(two_layers)
    before = dict(ranges)
    QuantizerOptions(fuse_qkv=True, clip_gelu=0.5).adjust(ranges, two_layers)
    assert ranges == before


def test_weights_of_query_key_and_value_form_groups(two_layers) -> None:
    groups = fused_groups([site.name for site in two_layers], QKV_WEIGHTS)
    assert groups == [
        tuple(
            f"encoder.layer.{layer}.attention.self.{linear}._weight_quantizer"
            for linear in ("query", "key", "value")
        )
        for layer in range(2)
    ]


# What cannot be asked for


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wprec": 1}, "`wprec` must be at least 2 and at most 8, got 1"),
        ({"wprec": 9}, "`wprec` must be at least 2 and at most 8, got 9"),
        ({"aprec": 0}, "`aprec` must be at least 2 and at most 8, got 0"),
        ({"aprec": 16}, "`aprec` must be at least 2 and at most 8, got 16"),
        ({"calibrator": "histogram"}, "`calibrator='histogram'` is unknown. Choose one of: max, "),
        ({"calibrator": "percentile"}, "Specify `percentile` when using the percentile calibrator"),
        ({"percentile": 99.9}, "`percentile=99.9` needs `calibrator='percentile'`, got 'max'"),
        ({"calibrator": "mse", "percentile": 99.9}, "got 'mse'"),
        ({"calibrator": "percentile", "percentile": 0.0}, "`percentile` must be above 0"),
        ({"calibrator": "percentile", "percentile": 100.1}, "at most 100, got 100.1"),
        ({"calibrator": "percentile", "percentile": float("nan")}, "`percentile` must be above 0"),
        ({"clip_gelu": 0.0}, "`clip_gelu` must be above 0, got 0.0"),
        ({"clip_gelu": -1.0}, "`clip_gelu` must be above 0, got -1.0"),
        ({"clip_gelu": float("nan")}, "`clip_gelu` must be above 0, got nan"),
        ({"quant_disable_keyword": ("(",)}, "'(' is not a regular expression"),
        ({"quant_disable_layer_module": "["}, "'[' is not a regular expression"),
        ({"quant_enable_layer_module": "*"}, "'*' is not a regular expression"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(arguments, message) -> None:
    with pytest.raises(SpecError) as caught:
        QuantizerOptions(**arguments)
    assert message in str(caught.value)
    assert isinstance(caught.value, QdqBertError)


def test_an_unknown_switch_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SpecError, match=r"Unknown quantizer options \['wprecision'\]\. Known: aprec, cali"
    ):
        QuantizerOptions.from_dict({"wprecision": 4})


def test_switches_are_a_value() -> None:
    assert QuantizerOptions(aprec=4) == QuantizerOptions(aprec=4) != QuantizerOptions(aprec=5)
    assert hash(QuantizerOptions(quant_disable_keyword=("a",))) == hash(
        QuantizerOptions(quant_disable_keyword=("a",))
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        QuantizerOptions().aprec = 4
    with pytest.raises(TypeError):
        QuantizerOptions(4)
    assert qdqbert.QuantizerOptions is QuantizerOptions


# Storing


def test_only_values_that_differ_from_the_default_are_stored() -> None:
    assert QuantizerOptions().to_dict() == {}
    assert QuantizerOptions(aprec=4, fuse_qkv=True, quant_disable_keyword=("a", "b")).to_dict() == {
        "aprec": 4,
        "fuse_qkv": True,
        "quant_disable_keyword": ["a", "b"],
    }


PATTERNS = st.sampled_from(["query", "", r"layer\.\d+", "matmul_[qk]", "ä"])
ANY_SWITCHES = st.builds(
    lambda calibrator, percentile, **others: QuantizerOptions(
        calibrator=calibrator,
        percentile=percentile if calibrator == "percentile" else None,
        **others,
    ),
    calibrator=st.sampled_from(["max", "percentile", "mse", "entropy"]),
    percentile=st.floats(0, 100, exclude_min=True),
    wprec=st.integers(2, 8),
    aprec=st.integers(2, 8),
    quant_per_tensor=st.booleans(),
    quant_disable=st.booleans(),
    quant_disable_keyword=st.lists(PATTERNS, max_size=3),
    quant_disable_layer_module=st.none() | PATTERNS,
    quant_enable_layer_module=st.none() | PATTERNS,
    fuse_qkv=st.booleans(),
    clip_gelu=st.none() | st.floats(0, 100, exclude_min=True),
    recalibrate_weights=st.booleans(),
)


@given(quantizer_options=ANY_SWITCHES)
def test_switches_come_back_from_json(quantizer_options) -> None:
    text = json.dumps(quantizer_options.to_dict())
    assert QuantizerOptions.from_dict(json.loads(text)) == quantizer_options


@given(quantizer_options=ANY_SWITCHES)
def test_a_config_holds_switches(quantizer_options) -> None:
    config = qdqbert.QDQBertConfig(quantizer_options=quantizer_options)
    assert config.quantizer_options == quantizer_options.to_dict()
    again = qdqbert.QDQBertConfig(**json.loads(config.to_json_string()))
    assert quantizer_options_of(again) == quantizer_options


def test_calibrate_spells_out_the_options() -> None:
    fields = {field.name: field for field in dataclasses.fields(QuantizerOptions)}
    # `calibrate` always takes the ranges of weights from their values.
    del fields["recalibrate_weights"]
    # `prepare` places the quantizers of tables, and `calibrate` moves none.
    del fields["weights_for"], fields["embeddings"]
    given = inspect.signature(qdqbert.calibrate).parameters
    assert set(given) - {"model", "batches", "advance"} == set(fields)
    assert all(given[name].default is None for name in fields)
