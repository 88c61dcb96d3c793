from __future__ import annotations

import pytest
import torch

from qdqbert.quantization.search.units import int8_percent, make_units
from qdqbert.quantization.spec import TensorSpec

LAYER = "bert.encoder.layer.0"
QUERY, DENSE = f"{LAYER}.attention.self.query", f"{LAYER}.output.dense"
SITES = (
    "bert.embeddings.word_embeddings._weight_quantizer",
    f"{QUERY}._input_quantizer",
    f"{QUERY}._weight_quantizer",
    f"{LAYER}.attention.self.matmul_q_input_quantizer",
    f"{DENSE}._input_quantizer",
    f"{DENSE}._weight_quantizer",
    f"{LAYER}.output.add_local_input_quantizer",
    "bert.encoder.layer.10.output.dense._weight_quantizer",
)
SPECS = dict.fromkeys(SITES, TensorSpec())
WEIGHTS = {
    f"{QUERY}._input_quantizer": torch.zeros(8, 8),
    f"{DENSE}._input_quantizer": torch.zeros(8, 32),
    "bert.encoder.layer.10.output.dense._input_quantizer": torch.zeros(8, 32),
}


@pytest.mark.parametrize(
    ("granularity", "names"),
    [
        ("layer", [SITES[0], LAYER, "bert.encoder.layer.10"]),
        (
            "linear",
            [SITES[0], QUERY, SITES[3], DENSE, SITES[6], "bert.encoder.layer.10.output.dense"],
        ),
        ("site", list(SITES)),
    ],
    ids=str,
)
def test_sites_are_grouped_in_the_order_of_the_model(granularity, names) -> None:
    units = make_units(SPECS, WEIGHTS, granularity)
    assert [unit.name for unit in units] == names
    assert sorted(site for unit in units for site in unit.sites) == sorted(SITES)


def test_sites_in_float_belong_to_no_unit() -> None:
    specs = {**SPECS, f"{QUERY}._input_quantizer": None, f"{QUERY}._weight_quantizer": None}
    assert QUERY not in {unit.name for unit in make_units(specs, WEIGHTS)}


def test_the_cost_of_a_linear_layer_is_its_number_of_weights() -> None:
    costs = {unit.name: unit.cost for unit in make_units(SPECS, WEIGHTS)}
    assert costs[QUERY] == 8 * 8
    assert costs[DENSE] == 8 * 32
    # 128 tokens times 8 channels, of which the other input of the product has half.
    assert costs[SITES[3]] == 512
    # One multiplication for each of 8 channels.
    assert costs[SITES[0]] == costs[SITES[6]] == 8


@pytest.mark.parametrize(
    ("in_float", "percent"),
    [
        # The last layer has no quantized input.
        ((), 100 * (64 + 256 + 512) / (64 + 2 * 256 + 512)),
        ((f"{QUERY}._input_quantizer",), 100 * (256 + 512) / (64 + 2 * 256 + 512)),
        ((f"{DENSE}._weight_quantizer", SITES[3]), 100 * 64 / (64 + 2 * 256 + 512)),
        (SITES, 0),
    ],
)
def test_the_share_of_int8_counts_layers_with_both_inputs_in_int8(in_float, percent) -> None:
    specs = {**SPECS, **dict.fromkeys(in_float)}
    assert int8_percent(specs, WEIGHTS) == pytest.approx(percent)


def test_a_larger_unit_costs_as_much_as_its_parts() -> None:
    layer = make_units(SPECS, WEIGHTS, "layer")[1]
    parts = make_units({name: SPECS[name] for name in layer.sites}, WEIGHTS, "linear")
    assert layer.cost == sum(unit.cost for unit in parts)
