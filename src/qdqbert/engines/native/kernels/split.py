"""Products of float32 with AMX's tiles of bfloat16.

A number is the sum of two bfloat16, `high + low`, within 2^-17 of its size. A product of two such
sums is computed as `low * high + high * high + high * low`, with sums in float32.

32 numbers of a row are stored as 16 pairs of `high`, then 16 pairs of `low`, in the 128 bytes that
they have as float32. Pair `n` has the numbers `n` and `n + 16`, so that nothing moves between the
lanes of vectors. Weights have the same order along the depth: panels of 16 columns are
`(panels, depth / 32, high or low, 16 pairs, 16 columns)`.
"""

from __future__ import annotations

from qdqbert.engines.native.ir import F32, I32, I64, VOID, Function, Module, Value, vector
from qdqbert.engines.native.kernels.amx_tiles import (
    ROW_TILES,
    SUM_TILES,
    WEIGHT_TILES,
    move_tile,
)
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.memory import LINE

DEPTH = 32
"""Numbers of a row that one instruction multiplies."""

_TILE = 16 * LINE


def split_pairs(f: Function, one: Value, other: Value) -> tuple[Value, Value]:
    """Return the `high` pairs and the `low` pairs of two vectors, `<lanes x i32>`."""
    integers = vector(I32, one.type.lanes)
    highs, lows = [], []
    for x in (one, other):
        # Rounded to the nearest bfloat16.
        high = (x.bits(integers) + 0x8000) & -0x10000
        highs.append(high)
        lows.append((x - high.bits(x.type)).bits(integers))
    return _paired(f, *highs), _paired(f, *lows)


def _paired(f: Function, one: Value, other: Value) -> Value:
    return f.shift_unsigned(one, 16) | (other & -0x10000)


def emit_split(module: Module) -> None:
    """Write `split_rows` and `split_product`."""
    _emit_rows(module)
    for rows in (2, 1):
        for columns in (2, 1):
            _emit_tile(module, rows, columns)
    _emit_product(module)


def _emit_rows(module: Module) -> None:
    """Write `split_rows`.

    Its arguments are the first row of float32 and the bytes from one row to the next, the number of
    rows, their length, a multiple of 16, and the first row of the result. Rows of the result are
    padded with zeros to a multiple of 32.
    """
    floats = vector(F32, PANEL)
    with module.function("split_rows", "x*, stride, rows, size, out*") as f:
        out_stride = (f.size + (DEPTH - 1)) // DEPTH * (4 * DEPTH)
        with f.loop(0, f.rows) as row, f.loop(0, f.size, DEPTH) as channel:
            x = f.x + (row * f.stride + channel * 4)
            is_whole = f.size - channel >= DEPTH
            other = f.load(floats, x + is_whole.select(f.constant(I64, LINE), 0))
            store_split(
                f,
                f.load(floats, x),
                is_whole.select(other, 0.0),
                f.out + row * out_stride + channel * 4,
            )


def store_split(f: Function, one: Value, other: Value, place: Value) -> None:
    """Store 32 numbers of a row: 16, and the 16 after them."""
    high, low = split_pairs(f, one, other)
    f.store(high, place)
    f.store(low, place + LINE)


def _emit_product(module: Module) -> None:
    """Write `split_product`: `out = x @ weights`.

    Its arguments are the first row and the bytes from one row to the next, the number of rows, the
    first panel of weights, the bytes from one panel to the next and the number of panels, the first
    row of the result and the bytes from one row to the next, and the depth, a multiple of 32. It
    reads and writes rows up to a multiple of 16.
    """
    with module.function(
        "split_product", "x*, stride, rows, weights*, panel, panels, out*, out_stride, depth"
    ) as f:

        def tile(panel: Value, width: int, row: Value, height: int) -> None:
            f.call(
                f"split_{height}x{width}",
                **f.own("stride, panel, out_stride, depth"),
                x=f.x + row * (PANEL * f.stride),
                weights=f.weights + panel * f.panel,
                out=f.out + (row * (PANEL * f.out_stride) + panel * LINE),
            )

        def column(panel: Value, width: int) -> None:
            rows = (f.rows + (PANEL - 1)) // PANEL
            in_blocks(f, rows, (2, 1), lambda row, height: tile(panel, width, row, height))

        in_blocks(f, f.panels, (2, 1), column)


def _emit_tile(module: Module, rows: int, columns: int) -> None:
    with module.function(
        f"split_{rows}x{columns}", "x*, stride, weights*, panel, out*, out_stride, depth"
    ) as f:
        grid = [(row, column) for row in range(rows) for column in range(columns)]
        for row, column in grid:
            f.intrinsic("llvm.x86.tilezero", VOID, immediate=(SUM_TILES[2 * row + column],))
        with f.loop(0, f.depth, DEPTH) as step:

            def load_rows(part: int) -> None:
                for row in range(rows):
                    place = f.x + (f.stride * (16 * row) + step * 4 + part * LINE)
                    move_tile(f, "tileloadd64", ROW_TILES[row], place, f.stride)

            def load_weights(part: int) -> None:
                for column in range(columns):
                    place = f.weights + (f.panel * column + step * (4 * PANEL) + part * _TILE)
                    move_tile(f, "tileloadd64", WEIGHT_TILES[column], place, f.constant(I64, LINE))

            def multiply() -> None:
                for row, column in grid:
                    tiles = (SUM_TILES[2 * row + column], ROW_TILES[row], WEIGHT_TILES[column])
                    f.intrinsic("llvm.x86.tdpbf16ps", VOID, immediate=tiles)

            load_rows(1)
            load_weights(0)
            multiply()
            load_rows(0)
            multiply()
            load_weights(1)
            multiply()
        for row, column in grid:
            place = f.out + (f.out_stride * (16 * row) + LINE * column)
            move_tile(f, "tilestored64", SUM_TILES[2 * row + column], place, f.out_stride)
