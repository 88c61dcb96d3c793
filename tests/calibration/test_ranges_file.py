from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.ranges_file import read_ranges, write_ranges
from qdqbert.common.errors import CalibrationError
from qdqbert.quantization.spec import Range, TensorSpec

QUERY, KEY = (
    f"encoder.layer.0.attention.self.{name}._input_quantizer" for name in ("query", "key")
)
SCALE = torch.rand(7, generator=torch.Generator().manual_seed(0)) + 0.5
WEIGHT = "encoder.layer.0.attention.self.query._weight_quantizer"
BITS = torch.arange(12, dtype=torch.uint8).view(3, 4)
ROUNDINGS = {
    (WEIGHT, TensorSpec(narrow=True, axis=0, adjacent_sum_limit=128)): BITS,
    (WEIGHT, TensorSpec(bits=4)): BITS + 1,
}
RANGES = {
    QUERY: Range(amax=0.1, low=-1 / 3, high=math.pi),  # none is a float32
    KEY: Range(amax=1e-300, low=-1e30, high=0.0),
    "encoder.layer.0.attention.self.matmul_a_input_quantizer": Range(amax=0.0, low=0.0, high=0.0),
}


def calibration() -> CalibrationResult:
    # Linears that read one tensor share one vector.
    return CalibrationResult(
        ranges=RANGES,
        scales={QUERY: SCALE, KEY: SCALE},
        means={QUERY: SCALE - 1, KEY: SCALE - 1},
        roundings=ROUNDINGS,
    )


def assert_same(a: CalibrationResult, b: CalibrationResult) -> None:
    assert a.ranges == b.ranges
    assert set(a.scales) == set(b.scales)
    assert set(a.means) == set(b.means)
    assert all(torch.equal(mean, b.means[name]) for name, mean in a.means.items())
    assert set(a.roundings) == set(b.roundings)
    assert all(torch.equal(bits, b.roundings[key]) for key, bits in a.roundings.items())
    assert (a.without_smoothing is None) is (b.without_smoothing is None)
    for name, scale in a.scales.items():
        assert scale.dtype == b.scales[name].dtype
        assert torch.equal(scale, b.scales[name])


def test_round_trip_is_exact(tmp_path: Path) -> None:
    write_ranges(calibration(), tmp_path / "ranges.safetensors")
    assert_same(read_ranges(tmp_path / "ranges.safetensors"), calibration())


def test_ranges_with_and_without_scales_come_back(tmp_path: Path) -> None:
    plain = CalibrationResult(
        ranges={QUERY: Range(amax=7.0, low=-7.0, high=3.0)},
        means={QUERY: SCALE - 1, KEY: SCALE - 1},
        roundings={(WEIGHT, TensorSpec(bits=4)): BITS + 2},
    )
    both = dataclasses.replace(calibration(), without_smoothing=plain)
    write_ranges(both, tmp_path / "ranges.safetensors")
    read = read_ranges(tmp_path / "ranges.safetensors")
    assert_same(read, both)
    assert read.without_smoothing is not None
    assert_same(read.without_smoothing, plain)


def test_equal_calibrations_give_equal_bytes(tmp_path: Path) -> None:
    reordered = CalibrationResult(
        ranges=dict(reversed(RANGES.items())),
        scales={KEY: SCALE.clone(), QUERY: SCALE.clone()},
        means={KEY: SCALE - 1, QUERY: SCALE - 1},
        roundings=dict(reversed(ROUNDINGS.items())),
    )
    for name, each in (("a", calibration()), ("b", calibration()), ("c", reordered)):
        write_ranges(each, tmp_path / name)
    first = (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").read_bytes() == first
    assert (tmp_path / "c").read_bytes() == first


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"nowhere\.safetensors' is not a ranges file"):
        read_ranges(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"no safetensors at all", b"\xff" * 100], ids=["empty", "text", "bytes"]
)
def test_file_that_is_no_safetensors_is_named(tmp_path: Path, content) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(CalibrationError, match="bad' is not a ranges file"):
        read_ranges(tmp_path / "bad")


@pytest.mark.parametrize(
    "tensors",
    [
        {"encoder.layer.0.output.dense.weight": torch.zeros(4, 4)},
        {"encoder.layer.0.output.dense.bias": torch.zeros(2)},
        {"embeddings.LayerNorm.bias": torch.zeros(4)},
    ],
    ids=["weight", "short-bias", "long-bias"],
)
def test_other_safetensors_are_named(tmp_path: Path, tensors) -> None:
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CalibrationError, match=r"model\.safetensors' is not a ranges file"):
        read_ranges(tmp_path / "model.safetensors")


def test_everybody_may_read_the_file(tmp_path) -> None:
    path = tmp_path / "ranges.safetensors"
    write_ranges(CalibrationResult(ranges={}, scales={}), path)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        (QUERY, [1.0, math.nan, 1.0], "NaN"),
        (QUERY, [math.inf, -1.0, 1.0], "an infinite value"),
        (QUERY, [-1.0, -1.0, 1.0], "the negative value -1"),
        (QUERY, [1.0, 1.0, 2.0], "the ends 1 and 2, without 0 in between"),
        (QUERY, [1.0, 1.0], "shape (2,), not (3,)"),
        (f"{QUERY}.plain", [1.0, -1.0, math.nan], "NaN"),
        (f"{QUERY}.pre_quant_scale", [1.0, 0.0], "the value 0, where only positive"),
        (f"{QUERY}.mean", [1.0, math.inf], "an infinite value"),
        (f"{WEIGHT}.weight_amax", [-1.0], "the negative value -1"),
    ],
)
def test_ranges_that_cannot_be_used_are_named(tmp_path: Path, name, values, problem) -> None:
    path = tmp_path / "ranges.safetensors"
    write_ranges(calibration(), path)
    tensors = {**load_file(path), name: torch.tensor(values)}
    save_file(tensors, path, metadata={"format": "qdqbert-ranges/2"})
    with pytest.raises(CalibrationError, match=re.escape(f"Tensor `{name}` of {str(path)!r} has ")):
        read_ranges(path)
    with pytest.raises(CalibrationError, match=re.escape(problem)):
        read_ranges(path)
