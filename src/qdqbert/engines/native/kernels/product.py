"""Products in float32: parts of a model that stay in float, and the two products of attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.shared_table import joined
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import in_tiles
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.memory import with_zeros, zeros
from qdqbert.engines.native.records import FLOAT_LINEAR

Table = tuple[NDArray[Any], NDArray[np.int8] | None, NDArray[np.float32] | None]
"""A table of words, of floats or codes, with the rest and the scale of codes; see `pack_table`."""

# Rows of a table that are converted together.
_ROWS_TOGETHER = 256 * PANEL
WIDEST = 64
"""Columns of the widest tile."""


def pack_floats(weights: NDArray[np.float32], depth: int) -> NDArray[np.float32]:
    """Return weights `(columns, in)` in panels `(panels, depth, 16)`, padded with zeros."""
    panels = -(-weights.shape[0] // PANEL)
    rows = with_zeros(weights, (panels * PANEL, depth))
    found = zeros((panels, depth, PANEL), np.float32)
    found[...] = rows.reshape(panels, PANEL, depth).transpose(0, 2, 1)
    return found


def pack_table(
    rows: NDArray[Any], rest: NDArray[np.int8] | None, scale: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Return an embedding table as the weights of a linear layer, as `pack_floats` does.

    Args:
        rows: The table `(rows, width)`, of codes or floats.
        rest: Lower 8 bits of 16-bit codes, `(rows, width)`; `None` for floats.
        scale: Scale of each channel of codes, `(width,)`; `None` for floats.
    """
    count, width = rows.shape
    panels = zeros((-(-count // PANEL), width, PANEL), np.float32)
    for first, floats in table_blocks(rows, rest, scale):
        made = pack_floats(floats, width)
        panels[first // PANEL : first // PANEL + len(made)] = made
    return panels


def table_blocks(
    rows: NDArray[Any], rest: NDArray[np.int8] | None, scale: NDArray[np.float32] | None
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the index of some rows of an embedding table, and the rows in float.

    There are a few rows at a time, because a table of floats may have a gigabyte. See `pack_table`
    for the arguments.
    """
    for first in range(0, len(rows), _ROWS_TOGETHER):
        some = slice(first, first + _ROWS_TOGETHER)
        floats = rows[some]
        if rest is not None and scale is not None:
            floats = joined(rows[some], rest[some], scale)
        yield first, floats


def emit_product(module: Module, isa: InstructionSet) -> None:
    """Write `product` and `float_linear`.

    The products of each result are added in the order of the depth, so that no result depends on
    how many rows and columns there are.
    """
    for rows in isa.rows:
        for vectors in isa.vectors:
            _emit_tile(module, isa.lanes, rows, vectors)
    _emit_product(module, isa)
    _emit_linear(module)


def _emit_product(module: Module, isa: InstructionSet) -> None:
    """Write `product`: `out = start + x @ weights`.

    Its arguments are the first row and the bytes from one row to the next, the number of rows, the
    first panel of weights, the bytes from one panel to the next and the number of panels, the first
    row of the result and the bytes from one row to the next, the depth, the sums to start from, and
    the bytes from one panel's sums to the next. If these bytes are 0, all columns start from the
    same `WIDEST` sums.
    """
    with module.function(
        "product",
        "x*, stride, rows, weights*, panel, panels, out*, out_stride, depth, start*, start_panel",
    ) as f:

        def tile(panel: Value, vectors: int, row: Value, height: int) -> None:
            f.call(
                f"product_{height}x{vectors}",
                **f.own("stride, panel, out_stride, depth"),
                x=f.x + row * f.stride,
                weights=f.weights + panel * f.panel,
                out=f.out + (row * f.out_stride + panel * (4 * PANEL)),
                start=f.start + panel * f.start_panel,
            )

        in_tiles(f, isa, f.rows, f.panels, tile)


def _emit_linear(module: Module) -> None:
    """Write `float_linear`: rows of a linear layer in float32.

    Its arguments are a `FLOAT_LINEAR` record, the first row and the bytes from one row to the next,
    the number of rows, and the first row of the result and the bytes from one row to the next.
    """
    with module.function("float_linear", "linear*, x*, stride, rows, out*, out_stride") as f:
        weights, panel, panels, depth, bias = FLOAT_LINEAR.each(
            f.linear, "weights", "panel", "panels", "depth", "bias"
        )
        f.call(
            "product",
            **f.own("x, stride, rows, out, out_stride"),
            weights=weights,
            panel=panel,
            panels=panels,
            depth=depth,
            start=bias,
            start_panel=4 * PANEL,
        )


def _emit_tile(module: Module, lanes: int, rows: int, vectors: int) -> None:
    floats = vector(F32, lanes)
    with module.function(
        f"product_{rows}x{vectors}", "x*, stride, weights*, panel, out*, out_stride, depth, start*"
    ) as f:
        starts = [f.load(floats, f.start + 4 * lanes * each) for each in range(vectors)]
        totals = [[f.variable(each) for each in starts] for _ in range(rows)]
        places = [_place(f, lanes * each) for each in range(vectors)]
        with f.loop(0, f.depth) as channel:
            weights = [f.load(floats, place + channel * (4 * PANEL)) for place in places]
            for row, sums in enumerate(totals):
                x = f.splat(f.load(F32, f.x + (f.stride * row + channel * 4)), lanes)
                for total, weight in zip(sums, weights, strict=True):
                    total.set(f.fma(x, weight, total.get()))
        for row, sums in enumerate(totals):
            for each, total in enumerate(sums):
                f.store(total.get(), f.out + (f.out_stride * row + 4 * lanes * each))


def _place(f: Function, column: int) -> Value:
    return f.weights + (f.panel * (column // PANEL) + column % PANEL * 4)
