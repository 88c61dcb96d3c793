"""A state dict of toolkit modules that an earlier version saved loads with the same outputs."""

from __future__ import annotations

from pathlib import Path

import torch

from qdqbert.compat.nn import QuantLinear


def test_an_earlier_state_dict_brings_bits_signs_ranges_and_switches() -> None:
    stored = torch.load(Path(__file__).parent / "data" / "quant_linear.pt", weights_only=False)
    linear = QuantLinear(3, 2)
    linear.load_state_dict(stored["state"])
    assert linear.input_quantizer.num_bits == 5
    assert linear.input_quantizer.unsigned
    assert linear.weight_quantizer.num_bits == 6
    assert linear.weight_quantizer.narrow_range
    assert "quant" not in linear.input_quantizer.extra_repr().split()
    torch.testing.assert_close(linear(stored["input"]), stored["output"])
