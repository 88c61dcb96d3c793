"""Linear layers in int8, and the operations on each result while it is in cache.

    value = (codes @ weights + start) * factor + bias

With dynamic scales, each row has a scale and a zero point of its own:

    value = (codes @ weights + start * zero_point / 128) * scale * factor + bias

While columns are multiplied, the weights of the next ones come into the second-level cache.
`linear_float` stores the values, `linear_add` adds them to a residual, `linear_add_rounded` does so
after fake quantization of both, and `linear_codes_gelu` and its like apply an activation function
and store the codes of the next linear layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from qdqbert.engines.native.functions import ACTIVATIONS, unsigned_codes
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I32, Function, Module, Type, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.round_trip import rounded_sum
from qdqbert.engines.native.records import CODES, LINEAR, ROW_SCALE

# Panels and rows whose results are finished together.
_FINISHED_PANELS, _FINISHED_ROWS = (2, 1), (2, 1)

Write = Callable[[list[Value], Value], None]
"""Writes the operations on values: their places in the result, a vector's part for each of them."""

Finish = Callable[[Function, Value, Type], Write]
"""Loads the values of a column, given the column and the type of a vector."""


def emit_linears(
    module: Module,
    isa: InstructionSet,
    activation: str,
    *,
    dynamic: bool = False,
    rounds_adds: bool = False,
) -> None:
    """Write all kernels of linear layers.

    Args:
        module: The module.
        isa: The instruction set.
        activation: Name of the activation function before the last linear layer.
        dynamic: Whether each row of codes has its own scale and zero point.
        rounds_adds: Whether inputs of residual adds are fake-quantized.
    """
    _emit(module, isa, "linear_float", _store, element=4, dynamic=dynamic)
    adds: dict[str, Finish] = {"linear_add": _add}
    if rounds_adds:
        adds["linear_add_rounded"] = _add_rounded
    for name, add in adds.items():
        _emit(module, isa, name, add, element=4, dynamic=dynamic, reads_out=True)
    if dynamic:
        # The scale of a row depends on all of its values.
        name, finish = f"linear_{activation}", _store_activation(activation)
        _emit(module, isa, name, finish, element=4, dynamic=True)
    else:
        name, finish = f"linear_codes_{activation}", _store_codes(activation)
        _emit(module, isa, name, finish, element=1, dynamic=False)


def emit_activations(module: Module) -> None:
    """Write `apply_gelu` and its like, which change a number of float32, a multiple of 16."""
    floats = vector(F32, PANEL)
    for name, activation in ACTIVATIONS.items():
        with (
            module.function(f"apply_{name}", "x*, count") as f,
            f.loop(0, f.count, PANEL) as each,
        ):
            place = f.x + each * 4
            f.store(activation(f, f.load(floats, place)), place)


def _store(f: Function, column: Value, floats: Type) -> Write:
    return lambda places, values: _store_parts(f, places, values)


def _add(f: Function, column: Value, floats: Type) -> Write:
    def write(places: list[Value], values: Value) -> None:
        residual = f.join([f.load(floats, place) for place in places])
        _store_parts(f, places, residual + values)

    return write


def _add_rounded(f: Function, column: Value, floats: Type) -> Write:
    """Add to a residual, after fake quantization of both by the records in `f.extra`."""
    add = rounded_sum(f, f.extra, column, floats)

    def write(places: list[Value], values: Value) -> None:
        residual = f.join([f.load(floats, place) for place in places])
        _store_parts(f, places, add(values, residual))

    return write


def _store_activation(name: str) -> Finish:
    def finish(f: Function, column: Value, floats: Type) -> Write:
        return lambda places, values: _store_parts(f, places, ACTIVATIONS[name](f, values))

    return finish


def _store_codes(name: str) -> Finish:
    def finish(f: Function, column: Value, floats: Type) -> Write:
        multiplier = f.load(floats, CODES.read(f, f.extra, "multiplier") + column * 4)
        shift = CODES.read(f, f.extra, "shift")

        def write(places: list[Value], values: Value) -> None:
            factor = f.join([multiplier] * len(places))
            shifts = f.splat(shift, values.type.lanes)
            codes = unsigned_codes(f, ACTIVATIONS[name](f, values), factor, shifts)
            for place, part in zip(places, codes.parts(len(places)), strict=True):
                f.store_bytes(part, place)

        return write

    return finish


def _store_parts(f: Function, places: list[Value], values: Value) -> None:
    for place, part in zip(places, values.parts(len(places)), strict=True):
        f.store(part, place)


def _emit(
    module: Module,
    isa: InstructionSet,
    name: str,
    finish: Finish,
    *,
    element: int,
    dynamic: bool,
    reads_out: bool = False,
) -> None:
    """Write a kernel that computes rows of a linear layer.

    Its arguments are a `LINEAR` record, the first panel of columns and their number, the first row
    of codes and the bytes from one row to the next, the number of rows, the first row of the result
    and the bytes from one row to the next, scales and zero points of the rows if they are dynamic,
    the argument of `finish`, and the weights that are read after these. The result starts with the
    first panel's columns.
    """
    finish_name = f"{name}_finish"
    adds_start = isa.tiles.start_at_zero
    _emit_finish(module, finish_name, finish, element, dynamic=dynamic, adds_start=adds_start)
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
    """Return a function that turns a tile of sums into results; see `tile.finish_tile`."""
    return module.function(
        name,
        "linear*, sums*, sum_stride, rows, column, columns, out*, out_stride, row_scales*, extra*",
    )


def _emit_finish(
    module: Module, name: str, finish: Finish, element: int, *, dynamic: bool, adds_start: bool
) -> None:
    """Write the function that turns a tile of sums into results.

    Values of two rows and up to 32 columns are one vector, which LLVM divides into registers. The
    instructions of these registers alternate, so that none waits for the one before.
    """
    with finish_function(module, name) as f:
        factors = LINEAR.read(f, f.linear, "factor") + f.column * 4
        biases = LINEAR.read(f, f.linear, "bias") + f.column * 4
        first = LINEAR.read(f, f.linear, "start") + f.column * 4

        def block(panel: Value, width: int) -> None:
            floats = vector(F32, PANEL * width)
            column = panel * PANEL
            factor = f.load(floats, factors + column * 4)
            bias = f.load(floats, biases + column * 4)
            start = f.load(vector(I32, floats.lanes), first + column * 4)
            shift = start.cast("sitofp", floats)
            write = finish(f, f.column + column, floats)

            def rows(row: Value, height: int) -> None:
                sums = f.sums + (row * f.sum_stride + column * 4)
                out = f.out + (row * f.out_stride + column * element)
                integers = vector(I32, floats.lanes)
                places = [sums + f.sum_stride * each for each in range(height)]
                totals = f.join([f.load(integers, place) for place in places])
                if adds_start:
                    totals = totals + f.join([start] * height)
                totals = totals.cast("sitofp", vector(F32, totals.type.lanes))
                if dynamic:
                    scales, corrections = (
                        [row_number(f, row + each, number, floats) for each in range(height)]
                        for number in range(2)
                    )
                    # The sums have zero point 128.
                    totals = f.fma(f.join(corrections), f.join([shift] * height), totals)
                    totals = totals * f.join(scales)
                values = f.fma(
                    totals,
                    f.join([factor] * height),
                    f.join([bias] * height),
                )
                write([out + f.out_stride * each for each in range(height)], values)

            in_blocks(f, f.rows, _FINISHED_ROWS, rows)

        in_blocks(f, f.columns // PANEL, _FINISHED_PANELS, block)


def row_number(f: Function, row: Value, number: int, floats: Type) -> Value:
    """Return the dynamic scale of a row, or its zero point's correction, in all lanes."""
    return f.splat(f.load(F32, f.row_scales + (row * ROW_SCALE + 4 * number)), floats.lanes)
