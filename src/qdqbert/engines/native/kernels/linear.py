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

from collections.abc import Callable

from qdqbert.engines.native.functions import ACTIVATIONS, unsigned_codes
from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import F32, I32, I64, PTR, Function, Module, Type, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import LINES_AHEAD, PANEL, amx_name, dot_name, prefetch
from qdqbert.engines.native.kernels.round_trip import rounded_sum
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.records import CODES, LINEAR, ROW_SCALE

_AMX_ROWS = 32
_AMX_PANELS = 2
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
            module.function(f"apply_{name}", x=PTR, count=I64) as f,
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
    # AMX's tiles start at zero.
    _emit_finish(module, finish_name, finish, element, dynamic=dynamic, adds_start=isa.amx)
    with module.function(
        name,
        linear=PTR,
        first=I64,
        panels=I64,
        codes=PTR,
        code_stride=I64,
        rows=I64,
        out=PTR,
        out_stride=I64,
        row_scales=PTR,
        extra=PTR,
        following=PTR,
    ) as f:
        if isa.amx:
            _loop_over_amx_tiles(f, finish_name, element)
        else:
            _loop_over_tiles(f, isa, finish_name, element, reads_out=reads_out)


def _loop_over_tiles(
    f: Function, isa: InstructionSet, finish: str, element: int, *, reads_out: bool
) -> None:
    """Write loops over tiles; a panel of weights stays in cache for all rows.

    While a column of tiles is computed, each tile brings a part of the next column's weights into
    the second-level cache. A few rows have time for a part of them only. If the result is added to
    what is there, that comes into the first-level cache meanwhile.
    """
    widths = tuple(vectors * isa.lanes // PANEL for vectors in isa.vectors)
    stride = widths[0] * PANEL * 4
    sums = f.allocate(I32, isa.rows[0] * stride // 4)
    tiles = ((f.rows + (isa.rows[0] - 1)) // isa.rows[0]).maximum(1)
    ahead_step = ((tiles + (widths[0] * LINE - 1)) // tiles).minimum(LINE)
    part = LINEAR.read(f, f.linear, "steps") * ahead_step

    def tile(panel: Value, width: int, row: Value, height: int, following: Value) -> None:
        name = dot_name(height, width * PANEL // isa.lanes)
        start = LINEAR.read(f, f.linear, "start") + (f.first + panel) * (4 * PANEL)
        ahead = following + row // isa.rows[0] * part
        if reads_out and isa.prefetches:
            place = _place(f, panel, row, element)
            for each in range(height):
                for line in range(width):
                    prefetch(f, place + f.out_stride * each + line * LINE, level=1)
        _dot(f, name, panel, row, sums, stride, start, ahead, ahead_step)
        _finish(f, finish, sums, stride, panel, width, row, height, element)

    def column(panel: Value, width: int) -> None:
        following = _following(f, panel + width)
        in_blocks(
            f, f.rows, isa.rows, lambda row, height: tile(panel, width, row, height, following)
        )

    in_blocks(f, f.panels, widths, column)


def _loop_over_amx_tiles(f: Function, finish: str, element: int) -> None:
    """Write loops over AMX's tiles, which read up to 31 rows after the last one.

    While two panels of weights are multiplied by 128 rows, the next two come into the second-level
    cache, a quarter of them during each 32 rows. With fewer rows the time is enough for a part.
    """
    stride = _AMX_PANELS * PANEL * 4
    sums = f.allocate(I32, _AMX_ROWS * stride // 4)
    part = LINEAR.read(f, f.linear, "steps") * (4 * LINES_AHEAD)

    def column(panel: Value, width: int) -> None:
        following = _following(f, panel + width)
        with f.loop(0, f.rows, _AMX_ROWS) as row:
            left = f.rows - row
            is_half = left <= _AMX_ROWS // 2
            ahead = following + row // _AMX_ROWS * part
            with f.when(is_half):
                _dot(f, amx_name(1, width), panel, row, sums, stride, ahead)
            with f.when(is_half ^ 1):
                _dot(f, amx_name(2, width), panel, row, sums, stride, ahead)
            height = left.minimum(_AMX_ROWS)
            _finish(f, finish, sums, stride, panel, width, row, height, element)

    in_blocks(f, f.panels, (_AMX_PANELS, 1), column)


def _following(f: Function, panel: Value) -> Value:
    """Return the weights that are read next: of a panel, or those that follow the last panel."""
    own = weights_of(f, f.linear, f.first + panel)
    return (panel < f.panels).select(own, f.following)


def _dot(
    f: Function, name: str, panel: Value, row: Value, sums: Value, stride: int, *last: Value
) -> None:
    f.call(
        name,
        f.codes + row * f.code_stride,
        f.code_stride,
        weights_of(f, f.linear, f.first + panel),
        LINEAR.read(f, f.linear, "panel"),
        sums,
        stride,
        LINEAR.read(f, f.linear, "steps"),
        *last,
    )


def _finish(
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
    column = (f.first + panel) * PANEL
    f.call(
        name,
        f.linear,
        sums,
        stride,
        height,
        column,
        PANEL * width,
        _place(f, panel, row, element),
        f.out_stride,
        f.row_scales + row * ROW_SCALE,
        f.extra,
    )


def _place(f: Function, panel: Value, row: Value, element: int) -> Value:
    """Return where the result of a panel and a row is."""
    return f.out + (row * f.out_stride + panel * (PANEL * element))


def _emit_finish(
    module: Module, name: str, finish: Finish, element: int, *, dynamic: bool, adds_start: bool
) -> None:
    """Write the function that turns a tile of sums into results.

    Values of two rows and up to 32 columns are one vector, which LLVM divides into registers. The
    instructions of these registers alternate, so that none waits for the one before.
    """
    with module.function(
        name,
        linear=PTR,
        sums=PTR,
        sum_stride=I64,
        rows=I64,
        column=I64,
        columns=I64,
        out=PTR,
        out_stride=I64,
        row_scales=PTR,
        extra=PTR,
    ) as f:
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
                        [_row_number(f, row + each, number, floats) for each in range(height)]
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


def _row_number(f: Function, row: Value, number: int, floats: Type) -> Value:
    """Return the dynamic scale of a row, or its zero point's correction, in all lanes."""
    return f.splat(f.load(F32, f.row_scales + (row * ROW_SCALE + 4 * number)), floats.lanes)
