from __future__ import annotations

import pytest

from calibration_cache import read_calibration_cache
from qdqbert.calibration.tensorrt_cache import write_calibration_cache
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
