"""A tile of sums of u8 x s8 products: `sums = start + codes @ weights`.

Weights are stored in panels of 16 columns, `(panels, depth / 4, 16, 4)`: the four weights that one
32-bit lane multiplies are neighbours.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import (
    I8,
    I16,
    I32,
    I64,
    PTR,
    VOID,
    Function,
    Module,
    Type,
    Value,
    vector,
)
from qdqbert.engines.native.memory import LINE

PANEL = 16
"""Columns of a panel."""

Count = TypeVar("Count", int, Value)

_DEPTH_OF_AMX = 64
LINES_AHEAD = 8
"""Lines of later weights that each step of AMX brings into the second-level cache."""
SUM_TILES, ROW_TILES, WEIGHT_TILES = (0, 1, 2, 3), (4, 5), (6, 7)
"""Tiles of AMX that hold sums, rows of codes or numbers, and weights."""


def pack(weights: NDArray[np.int8], depth: int) -> NDArray[np.int8]:
    """Return weights `(columns, in)` in panels, `(panels, depth / 4, 16, 4)`, padded with zeros."""
    panels = -(-weights.shape[0] // PANEL)
    padded = np.zeros((panels * PANEL, depth), np.int8)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    return np.ascontiguousarray(padded.reshape(panels, PANEL, depth // 4, 4).transpose(0, 2, 1, 3))


def bytes_of_codes(channels: Count) -> Count:
    """Return the bytes from one row of codes to the next: a line more than there are channels.

    Without it, the rows of a tile would share a few sets of the first-level cache, because numbers
    of channels have many factors of 2.
    """
    return channels + LINE


def dot_name(rows: int, vectors: int) -> str:
    """Return the name of the function for a tile of a linear layer."""
    return f"dot_{rows}x{vectors}"


def emit_dots(module: Module, isa: InstructionSet) -> None:
    """Write the function of each tile of an instruction set."""
    for rows in isa.rows:
        for vectors in isa.vectors:
            _emit_dot(module, isa, rows, vectors)
    if isa.amx:
        for rows in (2, 1):
            for columns in (2, 1):
                _emit_amx(module, rows, columns)
        _emit_amx_setup(module)


def _emit_dot(module: Module, isa: InstructionSet, rows: int, vectors: int) -> None:
    """Write the function of a tile.

    Its arguments are the first row of codes and the bytes from one row to the next, the first
    panel of weights and the bytes from one panel to the next, the first row of sums and the bytes
    from one row to the next, the depth divided by 4, the sums to start from, int32 `(columns,)`,
    and later weights with the bytes of them that each step brings into the second-level cache, at
    most a line.
    """
    lanes = isa.lanes
    sums_type = vector(I32, lanes)
    with module.function(
        dot_name(rows, vectors),
        codes=PTR,
        code_stride=I64,
        weights=PTR,
        panel=I64,
        sums=PTR,
        sum_stride=I64,
        steps=I64,
        start=PTR,
        ahead=PTR,
        ahead_step=I64,
    ) as f:
        places = [_place(f, f.weights, f.panel, lanes * each) for each in range(vectors)]
        starts = [f.load(sums_type, f.start + 4 * lanes * each) for each in range(vectors)]
        totals = [[f.variable(each) for each in starts] for _ in range(rows)]
        with f.loop(0, f.steps) as step:
            weights = [f.load(vector(I8, 4 * lanes), place + step * 4 * PANEL) for place in places]
            for row, sums in enumerate(totals):
                four = f.load(I32, f.codes + (f.code_stride * row + step * 4))
                for total, weight in zip(sums, weights, strict=True):
                    total.set(_add_products(f, isa, total.get(), four, weight))
            if isa.prefetches:
                prefetch(f, f.ahead + step * f.ahead_step)
        for row, sums in enumerate(totals):
            for each, total in enumerate(sums):
                f.store(total.get(), f.sums + (f.sum_stride * row + 4 * lanes * each))


def _place(f: Function, weights: Value, panel: Value, column: int) -> Value:
    return weights + (panel * (column // PANEL) + column % PANEL * 4)


def _add_products(
    f: Function, isa: InstructionSet, total: Value, four: Value, weights: Value
) -> Value:
    """Add the products of four codes with the four weights of a lane to each lane.

    Args:
        f: The function.
        isa: The instruction set.
        total: `<lanes x i32>`.
        four: The codes, as one i32.
        weights: `<4 lanes x i8>`.
    """
    lanes = isa.lanes
    repeated = f.splat(four, lanes)
    codes = repeated.bits(vector(I8, 4 * lanes))
    if isa.dot == "vpdpbusd":
        return f.intrinsic(
            f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", total.type, total, codes, weights
        )
    if isa.dot == "usdot":
        # The first operand is the unsigned one.
        return f.intrinsic("llvm.aarch64.neon.usdot.v4i32.v16i8", total.type, total, codes, weights)
    if isa.dot == "pmaddubsw":
        # Sums of two products have 16 bits. The adjacent sum limit keeps them from saturating.
        pairs = f.intrinsic("llvm.x86.avx2.pmadd.ub.sw", vector(I16, 2 * lanes), codes, weights)
        ones = f.constant(pairs.type, 1)
        return total + f.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, pairs, ones)
    if isa.dot == "pmaddwd":
        # Even and odd bytes as 16 bits: codes are unsigned, weights signed.
        shorts = vector(I16, 2 * lanes)
        codes, weights = codes.bits(shorts), weights.bits(shorts)
        even = (codes & 255, (weights << 8) >> 8)
        odd = (f.shift_unsigned(codes, 8), weights >> 8)
        for pair in (even, odd):
            total = total + f.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, *pair)
        return total
    for each in range(4):
        own = range(each, 4 * lanes, 4)
        product = codes.shuffle(own).cast("zext", total.type) * weights.shuffle(own).cast(
            "sext", total.type
        )
        total = total + product
    return total


def amx_name(rows: int, columns: int) -> str:
    """Return the name of the function for `rows` x `columns` tiles of 16 x 16 sums."""
    return f"amx_{rows}x{columns}"


def _emit_amx(module: Module, rows: int, columns: int) -> None:
    """Write `amx_{rows}x{columns}`, whose sums start at zero.

    It has the arguments of `dot` up to the depth, which has to be a multiple of 64, and the address
    of later weights. It reads `16 * rows` rows of codes.
    """
    with module.function(
        amx_name(rows, columns),
        codes=PTR,
        code_stride=I64,
        weights=PTR,
        panel=I64,
        sums=PTR,
        sum_stride=I64,
        steps=I64,
        ahead=PTR,
    ) as f:
        grid = [(row, column) for row in range(rows) for column in range(columns)]
        for row, column in grid:
            f.intrinsic("llvm.x86.tilezero", VOID, immediate=(SUM_TILES[2 * row + column],))
        with f.loop(0, f.steps, _DEPTH_OF_AMX // 4) as step:
            for row in range(rows):
                place = f.codes + (f.code_stride * (16 * row) + step * 4)
                move_tile(f, "tileloadd64", ROW_TILES[row], place, f.code_stride)
            for column in range(columns):
                place = f.weights + (f.panel * column + step * 4 * PANEL)
                move_tile(f, "tileloadd64", WEIGHT_TILES[column], place, f.constant(I64, 4 * PANEL))
            for row, column in grid:
                tiles = (SUM_TILES[2 * row + column], ROW_TILES[row], WEIGHT_TILES[column])
                f.intrinsic("llvm.x86.tdpbusd", VOID, immediate=tiles)
            # A step is as deep as a line is long.
            ahead = f.ahead + step * (4 * LINES_AHEAD)
            for line in range(LINES_AHEAD):
                prefetch(f, ahead + line * LINE)
        for row, column in grid:
            place = f.sums + (f.sum_stride * (16 * row) + 64 * column)
            move_tile(f, "tilestored64", SUM_TILES[2 * row + column], place, f.sum_stride)


def move_tile(f: Function, name: str, tile: int, place: Value, stride: Value) -> None:
    """Write an instruction that loads or stores a tile of AMX, with the bytes between rows."""
    f.intrinsic(f"llvm.x86.{name}", VOID, place, stride, immediate=(tile,))


def prefetch(f: Function, place: Value, *, level: int = 2) -> None:
    """Bring the line of an address into a level of the caches; any address is allowed."""
    f.module.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    # For reading; LLVM counts the three levels from the slowest one; data.
    f.raw(f"call void @llvm.prefetch.p0(ptr {place.text}, i32 0, i32 {4 - level}, i32 1)")


def _emit_amx_setup(module: Module) -> None:
    """Write `amx_start` and `amx_end`, which a thread calls before and after it uses tiles."""
    with module.function("amx_start") as f:
        # Palette 1, then the bytes in a row of each tile from byte 16, and its rows from byte 48.
        settings = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8]
        place = f.allocate(Type("i8", 64))
        f.store(f.constant(Type("i8", 64), settings), place)
        f.intrinsic("llvm.x86.ldtilecfg", VOID, place)
    with module.function("amx_end") as f:
        f.intrinsic("llvm.x86.tilerelease", VOID)
