"""What is found in weights whose faults are known, and in files of ONNX Runtime's tools."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qdqbert.evidence.findings import Finding, FindingKind, Storage, find_faults
from qdqbert.evidence.stored_weights import (
    StoredInput,
    StoredWeight,
    StoredWeights,
    read_stored_weights,
)
from third_party import LOUD

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.normal(size=(256, 64))


def stored(codes: np.ndarray, zero: int = 0, **changes: Any) -> StoredWeight:
    """Return a linear layer with signed 8-bit codes, one scale and inputs in 8 bits."""
    values: dict[str, Any] = {
        "name": "dense",
        "size": codes.size,
        "bits": 8,
        "is_float": False,
        "reads_codes": True,
        "load": lambda: (codes.astype(np.int16), np.array(zero, np.int16)),
    }
    return StoredWeight(**{**values, **changes})


def storage_of(
    *linears: StoredWeight, inputs: Mapping[str, np.ndarray] | None = None, **changes: Any
) -> Storage:
    values: dict[str, Any] = {
        "linears": linears,
        "tables": (),
        "products": (),
        "products_in_int8": (),
        "size_bytes": 1000,
    }
    found = find_faults(StoredWeights(**{**values, **changes}), inputs)
    assert found is not None
    return found


def found(kind: FindingKind, *linears: StoredWeight, **changes: Any) -> Finding | None:
    findings = storage_of(*linears, **changes).findings
    return next((each for each in findings if each.kind == kind), None)


def found_with(
    inputs: Mapping[str, np.ndarray], kind: FindingKind, *linears: StoredWeight
) -> Finding | None:
    return found(kind, *linears, inputs=inputs)


def rounded(weight: np.ndarray, step: Any, most: int = 127) -> np.ndarray:
    return np.clip(np.rint(weight / step), -most, most)


def noise(weight: np.ndarray, step: Any, most: int = 127) -> float:
    return float(((rounded(weight, step, most) * step - weight) ** 2).mean())


def test_the_share_of_codes_that_were_clipped_is_that_of_the_weights() -> None:
    limit = np.quantile(np.abs(WEIGHT), 0.95)
    finding = found("clipped weights", stored(rounded(WEIGHT, limit / 127)))
    assert finding is not None
    assert finding.amount == pytest.approx(5, abs=0.3)


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_whose_range_is_their_largest_value_are_not_clipped(per_channel) -> None:
    step = np.abs(WEIGHT).max(axis=0 if per_channel else None) / 127
    scales = "channel" if per_channel else "tensor"
    assert found("clipped weights", stored(rounded(WEIGHT, step), scales=scales)) is None


def test_sums_that_some_inputs_make_exceed_16_bits_are_counted() -> None:
    codes = RANDOM.integers(-127, 128, (40, 5))
    x = np.array([(0, 255, 0, 255), (0, 0, 255, 255)]).T
    beyond = [
        np.any((sums > 32767) | (sums < -32768))
        for pair in codes.reshape(20, 2, 5).transpose(0, 2, 1).reshape(-1, 2)
        for sums in [x @ pair]
    ]
    finding = found("saturating sums", stored(codes))
    assert finding is not None
    assert finding.amount == pytest.approx(100 * np.mean(beyond))


@pytest.mark.parametrize(
    "changes", [{"is_signed": False}, {"reads_codes": False}, {"bits": 4}, {"codes": 64}]
)
def test_sums_of_other_codes_fit(changes) -> None:
    codes = np.full((4, 4), changes.pop("codes", 127))
    assert found("saturating sums", stored(codes, **changes)) is None


@pytest.mark.parametrize("is_signed", [False, True])
def test_inputs_beyond_the_range_of_their_codes_are_counted(is_signed) -> None:
    x = RANDOM.normal(size=(100, 256)).astype(np.float32)
    low, high = np.quantile(x, [0.02, 0.97])
    scale = (high - low) / 255
    zero = int(np.rint(-low / scale)) - 128 * is_signed
    read = StoredInput(name="x", scale=scale, zero=zero, is_signed=is_signed)
    layer = stored(rounded(WEIGHT, 0.05), input=read)
    finding = found_with({"x": x}, "clipped inputs", layer)
    assert finding is not None
    assert finding.amount == pytest.approx(5, abs=0.3)
    wide = dataclasses.replace(read, scale=2 * scale)
    assert found_with({"x": x}, "clipped inputs", stored(WEIGHT, input=wide)) is None
    # The range of each batch has all of its values.
    dynamic = StoredInput(name="x", scale=None, zero=0, is_signed=False)
    assert found_with({"x": x}, "clipped inputs", stored(WEIGHT, input=dynamic)) is None


def test_sums_that_exceeded_16_bits_are_counted_on_the_inputs() -> None:
    read = StoredInput(name="x", scale=None, zero=0, is_signed=False)
    # Three of four tokens have the largest code.
    x = np.repeat(np.float32([[1], [1], [1], [0]]), 6, axis=1)
    finding = found_with({"x": x}, "saturating sums", stored(np.full((6, 2), 127), input=read))
    assert finding is not None
    assert (finding.amount, finding.seen_percent) == (100, 75)
    unseen = found("saturating sums", stored(np.full((6, 2), 127), input=read))
    assert unseen is not None
    assert unseen.seen_percent is None


def test_a_scale_for_each_channel_has_as_much_less_noise_as_is_reported() -> None:
    weight = WEIGHT.copy()
    weight[:, 0] *= 20
    step = np.abs(weight).max() / 127
    finding = found("one scale per tensor", stored(rounded(weight, step)))
    assert finding is not None
    gain = 10 * np.log10(noise(weight, step) / noise(weight, np.abs(weight).max(axis=0) / 127))
    assert finding.amount == pytest.approx(gain, abs=1)


def test_one_scale_is_no_fault_if_the_channels_are_alike() -> None:
    codes = rounded(WEIGHT, np.abs(WEIGHT).max() / 127)
    assert found("one scale per tensor", stored(codes)) is None


def test_the_sqnr_of_few_bits_is_that_of_the_rounded_weight() -> None:
    step = np.abs(WEIGHT).max() / 7
    finding = found("few bits", stored(rounded(WEIGHT, step, 7), bits=4))
    assert finding is not None
    expected = 10 * np.log10(np.mean(WEIGHT**2) / noise(WEIGHT, step, 7))
    assert finding.amount == pytest.approx(expected, abs=0.5)


def test_the_distance_of_zero_points_to_the_middle_is_found() -> None:
    unsigned = {"is_signed": False, "scales": "channel"}
    codes = rounded(WEIGHT, 0.05)
    finding = found("zero points of weights", stored(codes + 140, 140, **unsigned))
    assert finding is not None
    assert finding.amount == 12
    assert found("zero points of weights", stored(codes + 128, 128, **unsigned)) is None


def test_shares_count_weights_and_not_layers() -> None:
    codes = rounded(WEIGHT, 0.05)
    large = StoredWeight(name="large", size=3 * codes.size, bits=32, is_float=True)
    finding = found("layers in float", stored(codes), large)
    assert finding == Finding(
        kind="layers in float", count=1, total=2, worst="large", amount=pytest.approx(75)
    )
    assert storage_of(stored(codes), large).int8_percent == pytest.approx(25)
    only = stored(codes, reads_codes=False)
    assert found("inputs in float", only) is not None
    # A head is not worth a finding.
    head = StoredWeight(name="head", size=100, bits=32, is_float=True)
    assert found("layers in float", stored(codes), head) is None


def test_tables_are_named_if_they_are_a_large_part_of_the_file() -> None:
    table = StoredWeight(name="words", size=100, bits=32, is_float=True)
    linear = stored(rounded(WEIGHT, 0.05))
    finding = found("tables in float", linear, tables=(table,))
    assert finding is not None
    assert (finding.worst, finding.amount) == ("words", 400)
    assert found("tables in float", linear, tables=(table,), size_bytes=10_000) is None


def test_a_float_graph_has_no_findings(third_party) -> None:
    assert find_faults(read_stored_weights(third_party("float"))) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qdq", {"saturating sums", "one scale per tensor", "attention products in INT8"}),
        ("qoperator", {"saturating sums", "attention products in INT8"}),
        ("dynamic", {"saturating sums", "one scale per tensor"}),
        ("dynamic-channels", {"saturating sums"}),
        ("dynamic-7-bits", set()),
        ("dynamic-unsigned", {"one scale per tensor", "zero points of weights"}),
        (
            "dynamic-linears",
            {"saturating sums", "one scale per tensor", "tables in float"},
        ),
        ("dynamic-one", {"saturating sums", "one scale per tensor", "layers in float"}),
        ("4-bits", {"few bits", "inputs in float", "tables in float"}),
        (
            "4-bits-zero-points",
            {"few bits", "inputs in float", "tables in float", "zero points of weights"},
        ),
    ],
)
def test_the_faults_of_each_way_to_quantize_are_found(third_party, name, expected) -> None:
    storage = find_faults(read_stored_weights(third_party(name)))
    assert storage is not None
    assert storage.linear_layers == 14
    found = {each.kind: each for each in storage.findings}
    assert set(found) == expected
    # The layer is one of those that are left in float.
    if "one scale per tensor" in expected and name != "dynamic-one":
        assert found["one scale per tensor"].worst == LOUD


def test_graphs_of_this_package_have_no_findings(quantized) -> None:
    files = sorted(quantized("sentence").directory.rglob("*.onnx"))
    assert files
    for path in files:
        storage = find_faults(read_stored_weights(path))
        assert storage is not None
        assert (storage.findings, storage.int8_percent) == ((), 100), path.name
