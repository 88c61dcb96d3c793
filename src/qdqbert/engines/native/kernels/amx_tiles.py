"""Tiles of AMX: 16 x 16 sums each, two rows of two at a time."""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_set import FinishRows, InstructionSet, Tiles
from qdqbert.engines.native.ir import I32, I64, VOID, Function, Module, Type, Value
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL, prefetch
from qdqbert.engines.native.kernels.tile import (
    FINISHED,
    MULTIPLIED,
    Arguments,
    finished,
    following_weights,
    multiply_tile,
)
from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.records import LINEAR

_DEPTH = 64
_ROWS = 32
_PANELS = 2
# Lines of later weights that each step brings into the second-level cache, at most.
_LINES_AHEAD = 8
# Bytes of the activations of a block, which leave the second-level cache if they are more.
_ACTIVATIONS = 2_700_000
# Rows of a block at most: with more, weights are read seldom enough.
_MOST_ROWS = 768
# Bytes of weights that stay in the second-level cache beside results in float32, the most rows of
# these with such weights and with more, and their bytes at most.
_WEIGHTS, _FLOAT_ROWS, _FLOATS = 1_000_000, (64, 128), 1_600_000
SUM_TILES, ROW_TILES, WEIGHT_TILES = (0, 1, 2, 3), (4, 5), (6, 7)
"""Tiles that hold sums, rows of codes or numbers, and weights."""


@dataclasses.dataclass(frozen=True)
class AmxTiles(Tiles):
    """Tiles of AMX; see `instruction_set.Tiles`."""

    is_signed: bool = False
    start_at_zero = True
    spare_rows = _ROWS - 1

    def block(self, row: int) -> int:
        """Return the number of rows whose activations nearly fit in the second-level cache.

        The fewer blocks there are, the less often weights come from the third level.
        """
        return min(_ACTIVATIONS // row // _ROWS * _ROWS, _MOST_ROWS)

    def float_rows(self, weights: int, row: int) -> int:
        """Return more rows if their weights do not stay in the second-level cache."""
        most = _FLOAT_ROWS[weights > _WEIGHTS]
        return max(min(_FLOATS // row, most) // _ROWS * _ROWS, _ROWS)

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write the function of each number of tiles, and what a thread calls around them."""
        for rows in (2, 1):
            for columns in (2, 1):
                self._emit_tile(module, rows, columns)
        _emit_amx_setup(module)

    def emit_finish(self, module: Module, finish: str, rows_of: FinishRows) -> None:
        """Write the functions that finish a tile while the next one is multiplied."""
        for rows in (2, 1):
            self._emit_tile(module, rows, _PANELS, finish, rows_of)

    def signed(self) -> AmxTiles:
        """Return tiles that multiply signed codes."""
        return AmxTiles(is_signed=True)

    def begin(self, f: Function) -> None:
        """Write the setup of tiles."""
        f.call("amx_start")

    def end(self, f: Function) -> None:
        """Write the release of tiles."""
        f.call("amx_end")

    def loop(
        self, f: Function, isa: InstructionSet, finish: str, element: int, *, reads_out: bool
    ) -> None:
        """Write loops over tiles, which read up to 31 rows after the last one.

        While a tile is multiplied, the one before is finished. While two panels of weights are
        multiplied by all rows, the next two come into the second-level cache. With less than 128
        rows the time is enough for a part.
        """
        stride = _PANELS * PANEL * 4
        size = _ROWS * stride
        buffers = f.allocate(I32, 2 * size // 4)
        # The tile that is to be finished: its buffer, panel, first row and rows.
        before, *place = (f.variable(f.constant(I64, 0)) for _ in range(4))
        tiles = ((f.rows + (_ROWS - 1)) // _ROWS).maximum(1)
        # A step of all tiles has the rows of two tiles of weights.
        lines = ((tiles + (_ROWS - 1)) // tiles).minimum(_LINES_AHEAD)
        part = LINEAR.read(f.linear, "steps") * (4 * lines)

        def last() -> Arguments:
            panel, row, height = (each.get() for each in place)
            return finished(f, buffers + before.get(), stride, panel, _PANELS, row, height, element)

        def column(panel: Value, width: int) -> None:
            following = following_weights(f, panel + width)
            fuses = width == _PANELS and _fused(finish, 2) in f.module.functions
            with f.loop(0, f.rows, _ROWS) as row:
                height = (f.rows - row).minimum(_ROWS)
                sums = buffers + (before.get() ^ size)
                is_half = height <= _ROWS // 2
                for rows, condition in ((1, is_half), (2, is_half ^ 1)):
                    name: str = _fused(finish, rows) if fuses else amx_name(rows, width)
                    rest = last() if fuses else {}
                    ahead = following + row // _ROWS * part
                    with f.when(condition):
                        multiply_tile(
                            f, name, panel, row, sums, stride, ahead=ahead, lines=lines, **rest
                        )
                if fuses:
                    before.set(before.get() ^ size)
                    for variable, value in zip(place, (panel, row, height), strict=True):
                        variable.set(value)
                else:
                    own = (sums, stride, panel, width, row, height, element)
                    f.call(finish, **finished(f, *own))

        in_blocks(f, f.panels, (_PANELS, 1), column)
        with f.when(place[-1].get() > 0):
            f.call(finish, **last())

    def _emit_tile(
        self,
        module: Module,
        rows: int,
        columns: int,
        finish: str = "",
        rows_of: FinishRows | None = None,
    ) -> None:
        """Write `amx_{rows}x{columns}`, or the function that finishes the tile before, too.

        Sums start at zero. Its arguments are those of `MULTIPLIED`, where the depth has to be a
        multiple of 64, how many lines of later weights each step brings into the second-level
        cache, and `FINISHED` of the tile before. It reads `16 * rows` rows of codes, which do not
        stay in the first-level cache: the weights do.
        """
        name, more = amx_name(rows, columns), ""
        if rows_of is not None:
            name, more = _fused(finish, rows), f", {FINISHED}"
        with module.function(name, f"{MULTIPLIED}, lines{more}") as f:
            grid = [(row, column) for row in range(rows) for column in range(columns)]
            for row, column in grid:
                f.intrinsic("llvm.x86.tilezero", VOID, immediate=(SUM_TILES[2 * row + column],))
            write = None if rows_of is None else rows_of(f, f.constant(I64, 0), columns)
            steps = f.steps // (_DEPTH // 4)
            with f.loop(0, steps) as step:
                _multiply(f, grid, step, is_signed=self.is_signed)
                # A step leaves time for a part of the results. More would delay it, because vectors
                # have one port while tiles are multiplied.
                if write is not None:
                    with f.when(step * 2 < f.rows):
                        write([step * 2, (step * 2 + 1).minimum(f.rows - 1)])
            for row, column in grid:
                place = f.totals + (f.total_stride * (16 * row) + 64 * column)
                move_tile(f, "tilestored64", SUM_TILES[2 * row + column], place, f.total_stride)
            if write is not None:
                with f.loop(steps * 2, f.rows, 2) as first:
                    write([first, (first + 1).minimum(f.rows - 1)])


def amx_name(rows: int, columns: int) -> str:
    """Return the name of the function for `rows` x `columns` tiles of 16 x 16 sums."""
    return f"amx_{rows}x{columns}"


def _fused(finish: str, rows: int) -> str:
    """Return the name of the function that finishes the tile before, too."""
    return f"{finish}_{amx_name(rows, _PANELS)}"


def _multiply(f: Function, grid: list[tuple[int, int]], step: Value, *, is_signed: bool) -> None:
    """Write the products of 64 codes of each row, and bring later weights nearer."""
    for row in sorted({row for row, _ in grid}):
        place = f.codes + (f.code_stride * (16 * row) + step * _DEPTH)
        move_tile(f, "tileloaddt164", ROW_TILES[row], place, f.code_stride)
    for column in sorted({column for _, column in grid}):
        place = f.weights + (f.panel * column + step * (_DEPTH * PANEL))
        move_tile(f, "tileloadd64", WEIGHT_TILES[column], place, f.constant(I64, 4 * PANEL))
    for row, column in grid:
        tiles = (SUM_TILES[2 * row + column], ROW_TILES[row], WEIGHT_TILES[column])
        name = "tdpbssd" if is_signed else "tdpbusd"
        f.intrinsic(f"llvm.x86.{name}", VOID, immediate=tiles)
    # A step is as deep as a line is long.
    ahead = f.ahead + step * (f.lines * LINE)
    with f.loop(0, f.lines) as line:
        prefetch(f, ahead + line * LINE)


def move_tile(f: Function, name: str, tile: int, place: Value, stride: Value) -> None:
    """Write an instruction that loads or stores a tile of AMX, with the bytes between rows."""
    f.intrinsic(f"llvm.x86.{name}", VOID, place, stride, immediate=(tile,))


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
