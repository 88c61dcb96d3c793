from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from qdqbert.common.errors import QdqBertError, SpecError, UnmatchedRuleError
from qdqbert.quantization.numerics.affine import affine_parameters, symmetric_parameters
from qdqbert.quantization.spec import (
    Range,
    Rule,
    Site,
    Smoothing,
    TensorSpec,
    input_site_of,
    resolve,
)

INT8 = TensorSpec(bits=8)
AFFINE = {"signed": False, "symmetric": False}
UINT8 = TensorSpec(bits=8, signed=False, symmetric=False)
PER_CHANNEL = TensorSpec(bits=8, narrow=True, axis=0)

QUERY_INPUT = Site(
    name="encoder.layer.0.attention.self.query._input_quantizer",
    kind="activation",
    sequence_axes=(1,),
)
QUERY_WEIGHT = Site(
    name="encoder.layer.0.attention.self.query._weight_quantizer", kind="weight", channel_axis=0
)
TABLE = Site(name="embeddings.word_embeddings._weight_quantizer", kind="weight", channel_axis=1)


@pytest.mark.parametrize(
    ("bits", "signed", "symmetric", "narrow", "codes", "zero_points"),
    [
        (8, True, True, True, (-127, 127), (0, 0)),
        (8, True, True, False, (-128, 127), (0, 0)),
        (8, False, True, False, (0, 255), (0, 0)),
        (8, False, False, False, (0, 255), (0, 255)),
        (8, True, False, False, (-128, 127), (-128, 127)),
        (7, True, True, True, (-63, 63), (0, 0)),
    ],
    ids=["int8-narrow", "int8", "uint8", "uint8-affine", "int8-affine", "int7-narrow"],
)
def test_codes_and_zero_points_match_the_docstring(
    bits, signed, symmetric, narrow, codes, zero_points
) -> None:
    spec = TensorSpec(bits=bits, signed=signed, symmetric=symmetric, narrow=narrow)
    assert (spec.qmin, spec.qmax) == codes
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    if symmetric:
        ends = [symmetric_parameters(amax, spec) for amax in (zero, one)]
    else:  # a range on one side of zero puts the zero point at the end of the codes
        ends = [affine_parameters(zero, one, spec), affine_parameters(-one, zero, spec)]
    assert tuple(int(end.zero_point) for end in ends) == zero_points


@pytest.mark.parametrize("bits", range(2, 9))
def test_widths_from_two_to_eight_have_two_to_the_bits_codes(bits) -> None:
    for signed in (True, False):
        spec = TensorSpec(bits=bits, signed=signed)
        assert spec.qmax - spec.qmin + 1 == 2**bits
        assert spec.qmin <= 0 < spec.qmax


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"bits": 1}, "`bits` must be between 2 and 8, got 1"),
        ({"bits": 9}, "`bits` must be between 2 and 8, got 9"),
        ({"narrow": True, "signed": False}, "`narrow` needs a signed symmetric range"),
        ({"narrow": True, "symmetric": False}, "`narrow` needs a signed symmetric range"),
        (
            {"adjacent_sum_limit": 126},
            "`adjacent_sum_limit` needs symmetric codes and at least `qmax`, got 126",
        ),
        (
            {"adjacent_sum_limit": 128, "symmetric": False},
            "`adjacent_sum_limit` needs symmetric codes",
        ),
        # Each of the two codes is rounded by up to half a step, so a limit of 1 leaves no code.
        ({"bits": 2, "adjacent_sum_limit": 1}, "`adjacent_sum_limit` needs"),
        (
            {"dynamic": True},
            "`dynamic` needs unsigned affine codes of 8 bits with one scale, or .* got int8",
        ),
        ({**AFFINE, "bits": 7, "dynamic": True}, "`dynamic` needs unsigned affine codes of 8 bits"),
        ({**AFFINE, "axis": 0, "dynamic": True}, "`dynamic` needs unsigned affine codes of 8 bits"),
    ],
    ids=[
        "bits-1",
        "bits-9",
        "narrow-unsigned",
        "narrow-affine",
        "limit-low",
        "limit-affine",
        "limit-1",
        "dynamic-signed",
        "dynamic-7-bits",
        "dynamic-per-channel",
    ],
)
def test_spec_that_contradicts_itself_is_refused(choices, message) -> None:
    with pytest.raises(SpecError, match=message):
        TensorSpec(**choices)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (INT8, "int8 symmetric per-tensor"),
        (UINT8, "uint8 affine per-tensor"),
        (PER_CHANNEL, "int8 narrow symmetric per-channel axis 0"),
        (
            TensorSpec(bits=7, narrow=True, axis=1, adjacent_sum_limit=128),
            "int7 narrow symmetric per-channel axis 1 adjacent sums <= 128",
        ),
        (TensorSpec(**AFFINE, dynamic=True), "uint8 affine per-tensor dynamic"),
    ],
    ids=["int8", "uint8", "per-channel", "pair-limit", "dynamic"],
)
def test_a_spec_has_a_readable_description(spec, text) -> None:
    assert str(spec) == text


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"amax": math.nan, "low": 0.0, "high": 1.0}, "A range must be finite"),
        ({"amax": 1.0, "low": -math.inf, "high": 1.0}, "A range must be finite"),
        ({"amax": 1.0, "low": 0.0, "high": math.inf}, "A range must be finite"),
        ({"amax": -1.0, "low": 0.0, "high": 1.0}, "A range needs `0 <= amax`"),
        ({"amax": 1.0, "low": 0.5, "high": 1.0}, "`low <= 0 <= high`"),
        ({"amax": 1.0, "low": -1.0, "high": -0.5}, "`low <= 0 <= high`"),
    ],
    ids=["nan-amax", "inf-low", "inf-high", "negative-amax", "positive-low", "negative-high"],
)
def test_a_range_without_zero_or_end_is_refused(ends, message) -> None:
    with pytest.raises(SpecError, match=message):
        Range(**ends)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan], ids=str)
@pytest.mark.parametrize("name", ["alpha", "search"])
def test_smoothing_refuses_shares_outside_of_0_to_1(name, share) -> None:
    with pytest.raises(SpecError, match=f"`{name}` must be between 0 and 1"):
        Smoothing(**{"sites": ("*",), "alpha": 0.5, name: share})


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan], ids=str)
def test_smoothing_refuses_shares_of_a_source_outside_of_0_to_1(alpha) -> None:
    with pytest.raises(SpecError, match=r"`alphas` must be between 0 and 1, got .* for 'norm'"):
        Smoothing(sites=("*",), alpha=0.5, alphas=(("norm", alpha),))


def test_smoothing_refuses_a_share_of_a_source_that_it_does_not_smooth() -> None:
    with pytest.raises(SpecError, match=r"'gate', which is not one of the `sources`.*: norm."):
        Smoothing(sites=("*",), alpha=0.5, alphas=(("gate", 0.8),), sources=("norm",))


def test_sources_without_a_share_of_their_own_have_the_common_one() -> None:
    smoothing = Smoothing(sites=("*",), alpha=0.5, alphas=(("gate", 0.8), ("norm", 0.6)))
    shares = {
        source: smoothing.alpha_of(dataclasses.replace(QUERY_INPUT, source=source))
        for source in ("norm", "gate", "activation", None)
    }
    assert shares == {"norm": 0.6, "gate": 0.8, "activation": 0.5, None: 0.5}


def test_smoothing_matches_by_any_of_its_globs() -> None:
    smoothing = Smoothing(sites=("*.query._input_quantizer", "*.key.*"), alpha=0.5)
    key_input = Site(name="encoder.layer.0.attention.self.key._input_quantizer", kind="activation")
    assert smoothing.matches(QUERY_INPUT)
    assert smoothing.matches(key_input)
    assert not smoothing.matches(QUERY_WEIGHT)


def test_smoothing_by_source_leaves_other_inputs_alone() -> None:
    smoothing = Smoothing(sites=("*",), sources=("norm", "gate"), alpha=0.5)
    assert smoothing.matches(dataclasses.replace(QUERY_INPUT, source="norm"))
    assert not smoothing.matches(dataclasses.replace(QUERY_INPUT, source="activation"))
    assert not smoothing.matches(QUERY_INPUT)


def test_first_rule_that_matches_decides() -> None:
    rules = [Rule(site="*.query._input*", spec=None), Rule(site="*_quantizer", spec=INT8)]
    assert resolve(rules, [QUERY_INPUT, QUERY_WEIGHT]) == {
        QUERY_INPUT.name: None,
        QUERY_WEIGHT.name: INT8,
    }


def test_site_without_a_rule_stays_in_float() -> None:
    resolved = resolve([Rule(site="*._weight_quantizer", spec=INT8)], [QUERY_INPUT, QUERY_WEIGHT])
    assert resolved == {QUERY_INPUT.name: None, QUERY_WEIGHT.name: INT8}


def test_globs_are_case_sensitive() -> None:
    site = Site(name="LayerNorm", kind="activation")
    with pytest.raises(UnmatchedRuleError):
        resolve([Rule(site="layernorm", spec=INT8)], [site])


def test_unmatched_rule_names_the_glob() -> None:
    rules = [Rule(site="encoder.*.qeury.*", spec=None), Rule(site="*", spec=INT8)]
    with pytest.raises(UnmatchedRuleError, match=r"Rule 0 \('encoder\.\*\.qeury\.\*'\) decides no"):
        resolve(rules, [QUERY_INPUT])


def test_a_rule_behind_one_that_matches_its_sites_names_the_glob() -> None:
    rules = [Rule(site="*", spec=INT8), Rule(site="*.query.*", spec=None)]
    with pytest.raises(UnmatchedRuleError, match=r"Rule 1 \('\*\.query\.\*'\).*sites first"):
        resolve(rules, [QUERY_INPUT, QUERY_WEIGHT])


def test_per_channel_axis_comes_from_the_site() -> None:
    resolved = resolve([Rule(site="*", spec=PER_CHANNEL)], [QUERY_WEIGHT, TABLE])
    assert [spec and spec.axis for spec in resolved.values()] == [0, 1]


def test_per_tensor_spec_stays_per_tensor_at_a_site_with_channels() -> None:
    assert resolve([Rule(site="*", spec=INT8)], [TABLE]) == {TABLE.name: INT8}


def test_the_input_site_is_found_from_any_site_of_a_linear_layer() -> None:
    assert input_site_of(QUERY_WEIGHT.name) == QUERY_INPUT.name
    assert input_site_of(QUERY_INPUT.name) == QUERY_INPUT.name


def test_spec_errors_are_value_errors() -> None:
    assert issubclass(UnmatchedRuleError, SpecError)
    assert issubclass(SpecError, QdqBertError)
    assert issubclass(SpecError, ValueError)
