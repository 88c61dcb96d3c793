"""A tile of a linear layer, in a kernel of `linear`: sums of products, and what becomes of them."""

from __future__ import annotations

from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import LINEAR, ROW_SCALE

MULTIPLIED = "codes*, code_stride, weights*, panel, totals*, total_stride, steps, start*, ahead*"
"""The first arguments of a tile's function.

They are the first row of codes and the bytes from one row to the next, the first panel of weights
and the bytes from one panel to the next, where the sums go and the bytes from one row of them to
the next, the depth divided by 4, the int32 that the sums of each column start from, and later
weights, which it brings into the second-level cache.
"""

FINISHED = (
    "linear*, sums*, sum_stride, rows, column, columns, out*, out_stride, row_scales*, extra*"
)
"""Arguments of a function that turns a tile of sums into results."""

Arguments = dict[str, Value | int]
"""Arguments of a call by name."""


def multiply_tile(
    f: Function,
    name: str,
    panel: Value,
    row: Value,
    totals: Value,
    stride: int,
    **last: Value | int,
) -> None:
    """Write the call of a tile's function, whose arguments after `start` are `last`."""
    f.call(
        name,
        codes=f.codes + row * f.code_stride,
        code_stride=f.code_stride,
        weights=weights_of(f.linear, f.first + panel),
        panel=LINEAR.read(f.linear, "panel"),
        totals=totals,
        total_stride=stride,
        steps=LINEAR.read(f.linear, "steps"),
        start=LINEAR.read(f.linear, "first_sums") + (f.first + panel) * (4 * PANEL),
        **last,
    )


def finished(
    f: Function,
    sums: Value,
    stride: int,
    panel: Value,
    width: int,
    row: Value,
    height: Value | int,
    element: int,
) -> Arguments:
    """Return the arguments `FINISHED` for results of `element` bytes."""
    return {
        **f.own("linear, out_stride, extra"),
        "sums": sums,
        "sum_stride": stride,
        "rows": height,
        "column": (f.first + panel) * PANEL,
        "columns": PANEL * width,
        "out": place_of(f, panel, row, element),
        "row_scales": f.row_scales + row * ROW_SCALE,
    }


def place_of(f: Function, panel: Value, row: Value, element: int) -> Value:
    """Return where the result of a panel and a row is."""
    return f.out + (row * f.out_stride + panel * (PANEL * element))


def following_weights(f: Function, panel: Value) -> Value:
    """Return the weights that are read next: of a panel, or those that follow the last panel."""
    own = weights_of(f.linear, f.first + panel)
    return (panel < f.panels).select(own, f.following)
