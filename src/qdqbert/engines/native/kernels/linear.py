"""Linear layers in int8 or float, and the operations on each result while it is in cache.

    value = (codes @ weights + start) * factor + bias

With dynamic scales, each row has a scale of its own:

    value = (codes @ weights + start) * scale * factor + bias

In float, sums start from the bias and are the values.

While columns are multiplied, the weights of the next ones come into the second-level cache.
`linear_float` stores the values, `linear_add` adds them to a residual, `linear_add_rounded` does so
after fake quantization of both, and `linear_codes_gelu` and its like apply an activation function
and store the codes of the next linear layer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from qdqbert.engines.native.functions import ACTIVATIONS, EXACT_ACTIVATIONS, unsigned_codes
from qdqbert.engines.native.instruction_set import FinishRows, InstructionSet
from qdqbert.engines.native.ir import F32, I32, Function, Module, Type, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.round_trip import rounded_sum
from qdqbert.engines.native.kernels.tile import FINISHED
from qdqbert.engines.native.records import CODES, LINEAR, ROW_SCALE

# Panels and rows whose results are finished together.
_FINISHED_PANELS, _FINISHED_ROWS = (2, 1), (2, 1)

Change = Callable[[list[Value], Value], Value]
"""Writes the operations on values, given their places in the result, and returns what is stored."""

Scaled = Callable[[list[Value], Value], Value]
"""Writes the values of sums, given their rows."""

Scale = Callable[[Function, Value, Type], Scaled]
"""Loads what values of a column need, given the column in the tile and the type of a vector."""

Finish = Callable[[Function, Value, Type], Change]
"""Loads the values of a column, given the column and the type of a vector."""


def emit_linears(
    module: Module,
    isa: InstructionSet,
    activation: str,
    *,
    floats: bool = False,
    dynamic: bool = False,
    rounds_adds: bool = False,
) -> None:
    """Write all kernels of linear layers; see `Features`."""
    kind = {"floats": floats, "dynamic": dynamic}
    _emit(module, isa, "linear_float", _as_they_are, **kind)
    _emit(module, isa, "linear_add", _add, **kind, reads_out=True)
    if rounds_adds:
        _emit(module, isa, "linear_add_rounded", _add_rounded, **kind, reads_out=True)
    if floats or dynamic:
        # The scale of a row depends on all of its values.
        function = (EXACT_ACTIVATIONS if floats else ACTIVATIONS)[activation]
        _emit(module, isa, f"linear_{activation}", _activated(function), **kind)
    else:
        _emit(module, isa, f"linear_codes_{activation}", _codes(activation), **kind, element=1)


def emit_activations(module: Module, *, floats: bool) -> None:
    """Write `apply_gelu` and its like, which change a number of float32, a multiple of 16."""
    type = vector(F32, PANEL)
    for name, activation in (EXACT_ACTIVATIONS if floats else ACTIVATIONS).items():
        with module.function(f"apply_{name}", "x*, count") as f, f.loop(0, f.count, PANEL) as each:
            place = f.x + each * 4
            f.store(activation(f, f.load(type, place)), place)


def _as_they_are(f: Function, column: Value, floats: Type) -> Change:
    return lambda places, values: values


def _residual(f: Function, places: list[Value], floats: Type) -> Value:
    return f.join([f.load(floats, place) for place in places])


def _add(f: Function, column: Value, floats: Type) -> Change:
    return lambda places, values: _residual(f, places, floats) + values


def _add_rounded(f: Function, column: Value, floats: Type) -> Change:
    """Add to a residual, after fake quantization of both by the records in `f.extra`."""
    add = rounded_sum(f, f.extra, column, floats)
    return lambda places, values: add(values, _residual(f, places, floats))


def _activated(function: Callable[[Function, Value], Value]) -> Finish:
    return lambda f, column, floats: lambda places, values: function(f, values)


def _codes(name: str) -> Finish:
    def finish(f: Function, column: Value, floats: Type) -> Change:
        multiplier = f.load(floats, CODES.read(f.extra, "multiplier") + column * 4)
        shift = CODES.read(f.extra, "shift")

        def change(places: list[Value], values: Value) -> Value:
            factor = f.join([multiplier] * len(places))
            shifts = f.splat(shift, values.type.lanes)
            return unsigned_codes(f, ACTIVATIONS[name](f, values), factor, shifts)

        return change

    return finish


def _emit(
    module: Module,
    isa: InstructionSet,
    name: str,
    finish: Finish,
    *,
    floats: bool,
    dynamic: bool,
    element: int = 4,
    reads_out: bool = False,
) -> None:
    """Write a kernel that computes rows of a linear layer.

    Its arguments are a `LINEAR` record, the first panel of columns and their number, the first row
    of codes and the bytes from one row to the next, the number of rows, the first row of the result
    and the bytes from one row to the next, scales of the rows if they are dynamic,
    the argument of `finish`, and the weights that are read after these. The result starts with the
    first panel's columns.
    """
    finish_name = f"{name}_finish"
    # Sums of signed codes start from zero: dynamic codes are symmetric.
    adds_start = isa.tiles.start_at_zero and not isa.is_signed
    scale = _sums_in_float if floats else _scaled_sums(dynamic=dynamic, adds_start=adds_start)
    rows_of = functools.partial(_finish_rows, finish, element, scale)
    _emit_finish(module, finish_name, rows_of)
    isa.tiles.emit_finish(module, finish_name, rows_of)
    with kernel_function(module, name) as f:
        isa.tiles.loop(f, isa, finish_name, element, reads_out=reads_out)


def kernel_function(module: Module, name: str) -> contextlib.AbstractContextManager[Function]:
    """Return a kernel of a linear layer; see `_emit` for its arguments."""
    return module.function(
        name,
        "linear*, first, panels, codes*, code_stride, rows, out*, out_stride, row_scales*, extra*, "
        "following*",
    )


def finish_function(module: Module, name: str) -> contextlib.AbstractContextManager[Function]:
    """Return a function that turns a tile of sums into results; see `tile.finished`."""
    return module.function(name, FINISHED)


def _sums_in_float(f: Function, column: Value, floats: Type) -> Scaled:
    return lambda rows, sums: sums.bits(vector(F32, sums.type.lanes))


def _scaled_sums(*, dynamic: bool, adds_start: bool) -> Scale:
    """Return how sums in int32 become values."""

    def scale(f: Function, column: Value, floats: Type) -> Scaled:
        factor, bias = (
            f.load(floats, LINEAR.read(f.linear, name) + (f.column + column) * 4)
            for name in ("factor", "bias")
        )
        start = f.load(
            vector(I32, floats.lanes), LINEAR.read(f.linear, "first_sums") + (f.column + column) * 4
        )

        def scaled(rows: list[Value], sums: Value) -> Value:
            height = len(rows)
            if adds_start:
                sums = sums + f.join([start] * height)
            totals = sums.cast("sitofp", vector(F32, sums.type.lanes))
            if dynamic:
                totals = totals * f.join([row_scale(f, row, floats) for row in rows])
            return f.fma(totals, f.join([factor] * height), f.join([bias] * height))

        return scaled

    return scale


def _emit_finish(module: Module, name: str, rows_of: FinishRows) -> None:
    """Write the function that turns a tile of sums into results."""
    with finish_function(module, name) as f:

        def block(panel: Value, width: int) -> None:
            write = rows_of(f, panel, width)
            in_blocks(
                f,
                f.rows,
                _FINISHED_ROWS,
                lambda row, height: write([row + each for each in range(height)]),
            )

        in_blocks(f, f.columns // PANEL, _FINISHED_PANELS, block)


def _finish_rows(
    finish: Finish, element: int, scale: Scale, f: Function, panel: Value, width: int
) -> Callable[[list[Value]], None]:
    """Load what the results of some panels need; see `instruction_set.FinishRows`.

    Values of two rows and up to 32 columns are one vector, which LLVM divides into registers. The
    instructions of these registers alternate, so that none waits for the one before.
    """
    floats, column = vector(F32, PANEL * width), panel * PANEL
    scaled, change = scale(f, column, floats), finish(f, f.column + column, floats)

    def write(rows: list[Value]) -> None:
        places = [f.sums + (row * f.sum_stride + column * 4) for row in rows]
        sums = f.join([f.load(vector(I32, floats.lanes), place) for place in places])
        places = [f.out + (row * f.out_stride + column * element) for row in rows]
        changed = change(places, scaled(rows, sums))
        for place, part in zip(places, changed.parts(len(rows)), strict=True):
            (f.store if element == 4 else f.store_bytes)(part, place)

    return write


def row_scale(f: Function, row: Value, floats: Type) -> Value:
    """Return the dynamic scale of a row in all lanes."""
    return f.splat(f.load(F32, f.row_scales + row * ROW_SCALE), floats.lanes)
