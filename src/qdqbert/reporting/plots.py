"""Plots as SVG: numbers in, the text of one `svg` element out.

An element is as wide as a phone, and is enlarged by the page. Its colors are classes of the page's
style sheet, so that it is light or dark with the page. Each mark has a `title` with its numbers,
which browsers show under the pointer and screen readers read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal
from xml.etree import ElementTree

WIDTH = 360
"""Width of all plots, in units of the SVG's coordinates."""

_MARGIN = 12
# Plots with a vertical axis have its numbers here.
_AXIS = 40
_ROW = 38
_FONT = 12
_LONGEST_LABEL = 34
_TICKS = 5

Kind = Literal["float", "int8"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A value with an interval.

    Attributes:
        label: What was measured.
        value: The value.
        low: The lower end of its interval.
        high: The upper end.
    """

    label: str
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar that starts at 0.

    Attributes:
        label: What it stands for.
        value: Its length, at least 0.
        text: The value with its unit.
        kind: What it is colored as.
    """

    label: str
    value: float
    text: str
    kind: Kind


def interval_plot(
    rows: Sequence[Measured], *, title: str, unit: str = "", limit: float | None = None
) -> str:
    """Show values with their intervals on one axis that contains 0.

    Ends of intervals that are not finite are drawn at the end of the axis.

    Args:
        rows: The values, from top to bottom.
        title: What the plot shows.
        unit: Unit of the values.
        limit: A value to mark by a dashed line.
    """
    numbers = [0.0, *(end for row in rows for end in (row.value, row.low, row.high))]
    numbers += [] if limit is None else [limit]
    ticks = axis_ticks(_finite(numbers))
    x = _scale(ticks, _MARGIN, WIDTH - _MARGIN)
    bottom = _ROW * len(rows)
    root = _svg(bottom + 22, title)
    # Lines stand only where marks are, so that they do not cross the labels.
    places = [(tick, "zero" if tick == 0 else "grid") for tick in ticks]
    places += [] if limit is None else [(limit, "limit")]
    for tick in ticks:
        _text(root, x(tick), bottom + 15, f"{tick:g}", "tick", anchor="middle")
    for index, row in enumerate(rows):
        top = _ROW * index
        for place, style in places:
            _line(root, x(place), top + 19, x(place), top + 31, style)
        text = f"{row.value:.2f}{unit} ({row.low:.2f} to {row.high:.2f})"
        mark = _group(root, f"{row.label}: {text}")
        _text(mark, _MARGIN, top + 14, _shortened(row.label))
        _text(mark, WIDTH - _MARGIN, top + 14, f"{row.value:.2f}{unit}", anchor="end")
        low, value, high = (
            x(min(max(number, ticks[0]), ticks[-1])) for number in (row.low, row.value, row.high)
        )
        _line(mark, low, top + 25, high, top + 25, "interval")
        _circle(mark, value, top + 25, 4)
    return _finished(root)


def bar_plot(bars: Sequence[Bar], *, title: str) -> str:
    """Show lengths next to each other, from top to bottom.

    Args:
        bars: The bars. The longest one takes the whole width.
        title: What the plot shows.
    """
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    root = _svg(_ROW * len(bars), title)
    for index, bar in enumerate(bars):
        top = _ROW * index
        mark = _group(root, f"{bar.label}: {bar.text}")
        _text(mark, _MARGIN, top + 14, _shortened(bar.label))
        _text(mark, WIDTH - _MARGIN, top + 14, bar.text, anchor="end")
        width = (WIDTH - 2 * _MARGIN) * bar.value / longest
        _rectangle(mark, _MARGIN, top + 19, width, 12, bar.kind)
    return _finished(root)


def line_plot(values: Sequence[tuple[str, float]], *, title: str, unit: str) -> str:
    """Show values in order. Values that are not finite are left out.

    Args:
        values: Label and value of each point, from left to right.
        title: What the plot shows.
        unit: Unit of the values.
    """
    height, bottom = 190, 150
    ticks = axis_ticks([0.0, *_finite(value for _, value in values)])
    y = _scale(ticks, bottom, 10)
    step = (WIDTH - _AXIS - 2 * _MARGIN) / max(len(values) - 1, 1)
    root = _svg(height, title)
    for tick in ticks:
        _line(root, _AXIS, y(tick), WIDTH - _MARGIN, y(tick), "grid")
        _text(root, _AXIS - 6, y(tick) + 4, f"{tick:g}", "tick", anchor="end")
    points = [
        (_AXIS + _MARGIN + step * index, label, value)
        for index, (label, value) in enumerate(values)
    ]
    shown = [(x, y(value)) for x, _, value in points if math.isfinite(value)]
    path = " ".join(f"{_number(x)},{_number(top)}" for x, top in shown)
    ElementTree.SubElement(root, "polyline", {"points": path, "class": "curve"})
    every = -(-len(points) // 12)
    for index, (x, label, value) in enumerate(points):
        if index % every == 0:
            _text(root, x, bottom + 16, f"{index}", "tick", anchor="middle")
        if math.isfinite(value):
            _circle(_group(root, f"{label}: {value:.1f} {unit}"), x, y(value), 4)
    return _finished(root)


def histogram_plot(edges: Sequence[float], counts: Sequence[int], *, title: str, unit: str) -> str:
    """Show how many values each bin holds.

    Args:
        edges: Ends of the bins, ascending.
        counts: Number of values in each bin; one fewer than `edges`.
        title: What the plot shows.
        unit: Unit of the edges.
    """
    height, bottom = 190, 150
    ticks = axis_ticks([0.0, *counts])
    y = _scale(ticks, bottom, 10)
    x = _scale(edges, _AXIS, WIDTH - _MARGIN)
    root = _svg(height, title)
    for tick in ticks:
        _line(root, _AXIS, y(tick), WIDTH - _MARGIN, y(tick), "grid")
        _text(root, _AXIS - 6, y(tick) + 4, f"{tick:g}", "tick", anchor="end")
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        mark = _group(root, f"{low:g} to {high - 1:g} {unit}: {count}")
        _rectangle(mark, x(low), y(count), x(high) - x(low) - 1, bottom - y(count), "int8")
    for edge in edges[:: -(-len(edges) // 6)]:
        _text(root, x(edge), bottom + 16, f"{edge:g}", "tick", anchor="middle")
    _text(root, (WIDTH + _AXIS) / 2, bottom + 34, unit, "tick", anchor="middle")
    return _finished(root)


def axis_ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers at equal distances, the first and last of which enclose all values."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(each * power for each in (1, 2, 5, 10, 20) if span / (each * power) <= _TICKS)
    first, last = math.floor(low / step), math.ceil(high / step)
    # Rounded, as 3 * 0.1 is not 0.3.
    return [float(f"{index * step:.12g}") for index in range(first, max(last, first + 1) + 1)]


def _finite(numbers: Iterable[float]) -> list[float]:
    return [each for each in numbers if math.isfinite(each)]


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Return the linear function from the range of `values` to `start` and `end`."""
    low, high = values[0], values[-1]
    return lambda value: start + (end - start) * (value - low) / (high - low)


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _svg(height: float, title: str) -> ElementTree.Element:
    settings = {
        "viewBox": f"0 0 {WIDTH} {_number(height)}",
        "role": "img",
        "aria-label": title,
        "font-size": str(_FONT),
    }
    return ElementTree.Element("svg", settings)


def _group(parent: ElementTree.Element, title: str) -> ElementTree.Element:
    group = ElementTree.SubElement(parent, "g")
    ElementTree.SubElement(group, "title").text = title
    return group


def _line(
    parent: ElementTree.Element, x1: float, y1: float, x2: float, y2: float, style: str
) -> None:
    places = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    _shape(parent, "line", places, style)


def _circle(parent: ElementTree.Element, x: float, y: float, radius: float) -> None:
    _shape(parent, "circle", {"cx": x, "cy": y, "r": radius}, "point")


def _rectangle(
    parent: ElementTree.Element, x: float, y: float, width: float, height: float, style: str
) -> None:
    _shape(parent, "rect", {"x": x, "y": y, "width": max(width, 0), "height": height}, style)


def _shape(parent: ElementTree.Element, name: str, places: dict[str, float], style: str) -> None:
    attributes = {key: _number(value) for key, value in places.items()}
    ElementTree.SubElement(parent, name, {**attributes, "class": style})


def _text(
    parent: ElementTree.Element,
    x: float,
    y: float,
    text: str,
    style: str = "label",
    *,
    anchor: str = "start",
) -> None:
    settings = {"x": _number(x), "y": _number(y), "class": style, "text-anchor": anchor}
    ElementTree.SubElement(parent, "text", settings).text = text


def _finished(root: ElementTree.Element) -> str:
    # With end tags, as HTML parsers know self-closing tags in SVG, but not all tools do.
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)
