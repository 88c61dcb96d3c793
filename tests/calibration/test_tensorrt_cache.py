from __future__ import annotations

import pytest

from qdqbert.calibration.tensorrt_cache import (
    cache_header,
    read_calibration_cache,
    write_calibration_cache,
)
from qdqbert.errors import CalibrationError
from qdqbert.graph.qdq import float_graph, value_names
from qdqbert.spec import Range


def range_of(amax: float) -> Range:
    return Range(amax=amax, low=0, high=0)


def test_scales_are_hex_of_big_endian_floats(tmp_path) -> None:
    path = tmp_path / "calibration.cache"
    ranges = {"a": range_of(127.0), "b": range_of(63.5), "c": range_of(0), "d": range_of(1)}
    write_calibration_cache(ranges, {"a": "x", "b": "value: y", "c": "z"}, path)
    # IEEE 754: 1.0 is 3f800000, 0.5 is 3f000000.
    assert path.read_text() == "TRT-8601-EntropyCalibration2\nx: 3f800000\nvalue: y: 3f000000\n"
    assert read_calibration_cache(path) == {"x": 127.0, "value: y": 63.5}


def test_a_value_that_is_read_twice_has_the_wider_range(tmp_path) -> None:
    path = tmp_path / "calibration.cache"
    ranges = {"a": range_of(2.0), "b": range_of(3.0), "c": range_of(1.0)}
    write_calibration_cache(ranges, dict.fromkeys("abc", "x"), path)
    assert read_calibration_cache(path)["x"] == pytest.approx(3, rel=1e-7)


@pytest.mark.parametrize(
    ("version", "number"), [("8.5.3", 8503), ("8.6.1", 8601), ("10.3.0.26", 100300)]
)
def test_the_header_has_tensorrts_number(version, number) -> None:
    assert cache_header(version) == f"TRT-{number}-EntropyCalibration2"


def test_a_version_without_three_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got '10\.3'"):
        cache_header("10.3")


@pytest.mark.parametrize("text", ["", "x: 3f800000\n", "TRT-8601-EntropyCalibration2\nx: zz\n"])
def test_another_file_is_refused(tmp_path, text) -> None:
    path = tmp_path / "calibration.cache"
    path.write_text(text)
    with pytest.raises(CalibrationError, match="not a TensorRT calibration cache"):
        read_calibration_cache(path)


def test_names_are_values_of_the_float_graph(prepared, tmp_path) -> None:
    each = prepared("bert")
    path = tmp_path / "calibration.cache"
    write_calibration_cache(each.plain.ranges, value_names(each.graph), path)
    written = read_calibration_cache(path)
    graph = float_graph(each.graph).graph
    made = {value.name for node in graph for value in node.outputs}
    assert set(written) <= made
    # Query, key, value and the residual read the state that enters a layer; so do two each after.
    assert len(written) == 8 * len(each.layers) + len(each.layers) * 2
    widest: dict[str, float] = {}
    for site, name in value_names(each.graph).items():
        if site in each.plain.ranges:
            widest[name] = max(widest.get(name, 0.0), each.plain.ranges[site].amax)
    # A scale is stored as float32.
    assert written == pytest.approx(widest, rel=1e-6)
