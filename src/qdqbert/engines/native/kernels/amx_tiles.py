"""Tiles of AMX: 16 x 16 sums each, two rows of two at a time."""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_set import InstructionSet, Tiles
from qdqbert.engines.native.ir import I32, I64, VOID, Function, Module, Type, Value
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL, prefetch
from qdqbert.engines.native.kernels.tile import (
    MULTIPLIED,
    finish_tile,
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
SUM_TILES, ROW_TILES, WEIGHT_TILES = (0, 1, 2, 3), (4, 5), (6, 7)
"""Tiles that hold sums, rows of codes or numbers, and weights."""


@dataclasses.dataclass(frozen=True)
class AmxTiles(Tiles):
    """Tiles of AMX; see `instruction_set.Tiles`."""

    start_at_zero = True
    spare_rows = _ROWS - 1

    def block(self, row: int) -> int:
        """Return the number of rows whose activations nearly fit in the second-level cache.

        The fewer blocks there are, the less often weights come from the third level.
        """
        return min(_ACTIVATIONS // row // _ROWS * _ROWS, _MOST_ROWS)

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write the function of each number of tiles, and what a thread calls around them."""
        for rows in (2, 1):
            for columns in (2, 1):
                _emit_amx(module, rows, columns)
        _emit_amx_setup(module)

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

        While two panels of weights are multiplied by all rows, the next two come into the
        second-level cache. With less than 128 rows the time is enough for a part.
        """
        stride = _PANELS * PANEL * 4
        sums = f.allocate(I32, _ROWS * stride // 4)
        tiles = ((f.rows + (_ROWS - 1)) // _ROWS).maximum(1)
        # A step of all tiles has the rows of two tiles of weights.
        lines = ((tiles + (_ROWS - 1)) // tiles).minimum(_LINES_AHEAD)
        part = LINEAR.read(f.linear, "steps") * (4 * lines)

        def column(panel: Value, width: int) -> None:
            following = following_weights(f, panel + width)
            with f.loop(0, f.rows, _ROWS) as row:
                left = f.rows - row
                is_half = left <= _ROWS // 2
                ahead = following + row // _ROWS * part
                for rows, condition in ((1, is_half), (2, is_half ^ 1)):
                    name, place = amx_name(rows, width), (panel, row, sums, stride)
                    with f.when(condition):
                        multiply_tile(f, name, *place, ahead=ahead, lines=lines)
                height = left.minimum(_ROWS)
                finish_tile(f, finish, sums, stride, panel, width, row, height, element)

        in_blocks(f, f.panels, (_PANELS, 1), column)


def amx_name(rows: int, columns: int) -> str:
    """Return the name of the function for `rows` x `columns` tiles of 16 x 16 sums."""
    return f"amx_{rows}x{columns}"


def _emit_amx(module: Module, rows: int, columns: int) -> None:
    """Write `amx_{rows}x{columns}`, whose sums start at zero.

    Its arguments are those of `MULTIPLIED`, where the depth has to be a multiple of 64, the address
    of later weights, and how many lines of them each step brings into the second-level cache. It
    reads `16 * rows` rows of codes, which do not stay in the first-level cache: the weights do.
    """
    with module.function(amx_name(rows, columns), f"{MULTIPLIED}, ahead*, lines") as f:
        grid = [(row, column) for row in range(rows) for column in range(columns)]
        for row, column in grid:
            f.intrinsic("llvm.x86.tilezero", VOID, immediate=(SUM_TILES[2 * row + column],))
        with f.loop(0, f.steps, _DEPTH // 4) as step:
            for row in range(rows):
                place = f.codes + (f.code_stride * (16 * row) + step * 4)
                move_tile(f, "tileloaddt164", ROW_TILES[row], place, f.code_stride)
            for column in range(columns):
                place = f.weights + (f.panel * column + step * 4 * PANEL)
                move_tile(f, "tileloadd64", WEIGHT_TILES[column], place, f.constant(I64, 4 * PANEL))
            for row, column in grid:
                tiles = (SUM_TILES[2 * row + column], ROW_TILES[row], WEIGHT_TILES[column])
                f.intrinsic("llvm.x86.tdpbusd", VOID, immediate=tiles)
            # A step is as deep as a line is long.
            ahead = f.ahead + step * (f.lines * 4)
            with f.loop(0, f.lines) as line:
                prefetch(f, ahead + line * LINE)
        for row, column in grid:
            place = f.sums + (f.sum_stride * (16 * row) + 64 * column)
            move_tile(f, "tilestored64", SUM_TILES[2 * row + column], place, f.sum_stride)


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
