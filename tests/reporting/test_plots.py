"""Plots: where marks are, compared with the numbers they stand for."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqbert.reporting.plots import (
    WIDTH,
    Bar,
    Measured,
    axis_ticks,
    bar_plot,
    histogram_plot,
    interval_plot,
    line_plot,
)

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6)


def all_of(svg: str, name: str, **attributes: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(svg).iter(name)
    return [each for each in found if attributes.items() <= each.attrib.items()]


def places(elements: list[ElementTree.Element], *names: str) -> list[list[float]]:
    return [[float(each.attrib[name]) for name in names] for each in elements]


def axis(svg: str) -> tuple[float, float]:
    """Return the slope and the offset of the horizontal axis, from its numbers."""
    ticks = all_of(svg, "text", **{"class": "tick", "text-anchor": "middle"})
    ((first, start), (last, end)) = [
        (float(each.text or ""), float(each.attrib["x"])) for each in (ticks[0], ticks[-1])
    ]
    slope = (end - start) / (last - first)
    return slope, start - slope * first


@given(st.lists(NUMBERS, min_size=1))
def test_ticks_are_few_equally_far_apart_and_enclose_the_values(values) -> None:
    ticks = axis_ticks(values)
    assert 2 <= len(ticks) <= 7
    assert ticks[0] <= min(values)
    assert max(values) <= ticks[-1]
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)
    digits = f"{steps[0]:.0e}"[0]
    assert digits in "125"


def test_points_and_intervals_are_at_their_values() -> None:
    rows = [
        Measured(label="a", value=-0.5, low=-1.25, high=0.25),
        Measured(label="b", value=2.0, low=1.0, high=2.5),
    ]
    svg = interval_plot(rows, title="difference", limit=-1.0)
    slope, offset = axis(svg)
    points = places(all_of(svg, "circle"), "cx")
    assert points == [[pytest.approx(slope * row.value + offset, abs=0.01)] for row in rows]
    intervals = places(all_of(svg, "line", **{"class": "interval"}), "x1", "x2")
    assert intervals == [
        [pytest.approx(slope * end + offset, abs=0.01) for end in (row.low, row.high)]
        for row in rows
    ]
    for style, value in (("limit", -1.0), ("zero", 0.0)):
        lines = places(all_of(svg, "line", **{"class": style}), "x1")
        assert lines == [[pytest.approx(slope * value + offset, abs=0.01)]] * len(rows)
    titles = [each.text for each in all_of(svg, "title")]
    assert titles == ["a: -0.50 (-1.25 to 0.25)", "b: 2.00 (1.00 to 2.50)"]


def test_intervals_without_bounds_take_the_whole_axis() -> None:
    row = Measured(label="a", value=1.0, low=-math.inf, high=math.inf)
    svg = interval_plot([row], title="difference")
    slope, offset = axis(svg)
    ends = axis_ticks([0.0, 1.0])
    (line,) = places(all_of(svg, "line", **{"class": "interval"}), "x1", "x2")
    assert line == [pytest.approx(slope * end + offset, abs=0.01) for end in (ends[0], ends[-1])]


def test_bars_are_as_long_as_their_values_and_the_longest_fits() -> None:
    values = [8.0, 4.0, 0.0]
    bars = [Bar(label=f"{x}", value=x, text=f"{x} ms", kind="float") for x in values]
    widths = np.array(places(all_of(bar_plot(bars, title="latency"), "rect"), "width"))[:, 0]
    np.testing.assert_allclose(widths / widths[0], [1, 0.5, 0])
    assert widths[0] < WIDTH


def test_lines_connect_finite_values_at_their_heights() -> None:
    values = [("embeddings", math.inf), ("layer", 30.0), ("logits", 20.0)]
    svg = line_plot(values, title="SQNR", unit="dB")
    ticks = all_of(svg, "text", **{"class": "tick", "text-anchor": "end"})
    heights = {float(each.text or ""): float(each.attrib["y"]) - 4 for each in ticks}
    (layer, logits) = places(all_of(svg, "circle"), "cx", "cy")
    assert (layer[1], logits[1]) == (heights[30.0], heights[20.0])
    assert layer[0] < logits[0]
    (line,) = all_of(svg, "polyline")
    points = [[float(x) for x in pair.split(",")] for pair in line.attrib["points"].split()]
    assert points == [layer, logits]


def test_bins_of_a_histogram_have_their_widths_and_heights() -> None:
    svg = histogram_plot([3, 5, 9], [4, 1], title="lengths", unit="tokens")
    (low, high) = places(all_of(svg, "rect"), "x", "width", "height")
    # One unit is left between bins.
    assert (high[1] + 1) / (low[1] + 1) == pytest.approx(2, abs=0.01)
    assert low[2] / high[2] == pytest.approx(4, abs=0.01)
    assert high[0] == pytest.approx(low[0] + low[1] + 1, abs=0.02)
    titles = [each.text for each in all_of(svg, "title")]
    assert titles == ["3 to 4 tokens: 4", "5 to 8 tokens: 1"]


def test_labels_are_escaped_and_shortened() -> None:
    name = "<script>alert(1)</script>" * 4
    svg = bar_plot([Bar(label=name, value=1, text='"&', kind="int8")], title=name)
    assert "<script" not in svg
    (label, text) = all_of(svg, "text")
    assert (label.text or "").startswith("<script>")
    assert len(label.text or "") < 40
    assert text.text == '"&'
