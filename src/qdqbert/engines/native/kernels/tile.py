"""A tile of a linear layer, in a kernel of `linear`: sums of products, and what becomes of them."""

from __future__ import annotations

from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import LINEAR, ROW_SCALE

MULTIPLIED = "codes*, code_stride, weights*, panel, sums*, sum_stride, steps"
"""The first arguments of a tile's function.

They are the first row of codes and the bytes from one row to the next, the first panel of weights
and the bytes from one panel to the next, the first row of sums and the bytes from one row to the
next, and the depth divided by 4.
"""


def multiply_tile(
    f: Function, name: str, panel: Value, row: Value, sums: Value, stride: int, **last: Value
) -> None:
    """Write the call of a tile's function, whose arguments after `MULTIPLIED` are `last`."""
    f.call(
        name,
        codes=f.codes + row * f.code_stride,
        code_stride=f.code_stride,
        weights=weights_of(f.linear, f.first + panel),
        panel=LINEAR.read(f.linear, "panel"),
        sums=sums,
        sum_stride=stride,
        steps=LINEAR.read(f.linear, "steps"),
        **last,
    )


def finish_tile(
    f: Function,
    name: str,
    sums: Value,
    stride: int,
    panel: Value,
    width: int,
    row: Value,
    height: Value | int,
    element: int,
) -> None:
    """Write the call of the function that turns sums into results of `element` bytes."""
    column = (f.first + panel) * PANEL
    f.call(
        name,
        **f.own("linear, out_stride, extra"),
        sums=sums,
        sum_stride=stride,
        rows=height,
        column=column,
        columns=PANEL * width,
        out=place_of(f, panel, row, element),
        row_scales=f.row_scales + row * ROW_SCALE,
    )


def place_of(f: Function, panel: Value, row: Value, element: int) -> Value:
    """Return where the result of a panel and a row is."""
    return f.out + (row * f.out_stride + panel * (PANEL * element))


def following_weights(f: Function, panel: Value) -> Value:
    """Return the weights that are read next: of a panel, or those that follow the last panel."""
    own = weights_of(f.linear, f.first + panel)
    return (panel < f.panels).select(own, f.following)
