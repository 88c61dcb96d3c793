"""Tiles whose sums stay in vector registers.

Each adds `codes @ weights` to the sums that it starts from.
"""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.instruction_set import InstructionSet, Tiles
from qdqbert.engines.native.ir import I8, I32, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL, prefetch
from qdqbert.engines.native.kernels.tile import (
    MULTIPLIED,
    finished,
    following_weights,
    multiply_tile,
    place_of,
)
from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.records import LINEAR

# They make signed codes of four unsigned ones: the same as subtracting 128.
_SIGN_BITS = 0x80808080


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorTiles(Tiles):
    """Tiles of vectors; see `instruction_set.Tiles`.

    Attributes:
        prefetches: Whether tiles bring later weights into the second-level cache.
        steps_together: Steps of four products whose codes are loaded as one vector. Instructions
            that multiply by a lane of a vector need no copies of it. The depth has to be a multiple
            of this and 4.
    """

    prefetches: bool = False
    steps_together: int = 1
    start_at_zero = False
    is_signed = False
    spare_rows = 0

    def block(self, row: int) -> int:
        """Return 128: a vector takes longer to multiply by than to come from the third level."""
        return 128

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write the function of each tile."""
        for rows in isa.rows:
            for vectors in isa.vectors:
                self._emit_dot(module, isa, rows, vectors)

    def loop(
        self, f: Function, isa: InstructionSet, finish: str, element: int, *, reads_out: bool
    ) -> None:
        """Write loops over tiles; a panel of weights stays in cache for all rows.

        While a column of tiles is computed, each tile brings a part of the next column's weights
        into the second-level cache. A few rows have time for a part of them only. If the result is
        added to a residual, the residual comes into the first-level cache meanwhile.
        """
        widths = tuple(vectors * isa.lanes // PANEL for vectors in isa.vectors)
        stride = widths[0] * PANEL * 4
        sums = f.allocate(I32, isa.rows[0] * stride // 4)
        tiles = ((f.rows + (isa.rows[0] - 1)) // isa.rows[0]).maximum(1)
        ahead_step = ((tiles + (widths[0] * LINE - 1)) // tiles).minimum(LINE)
        part = LINEAR.read(f.linear, "steps") * ahead_step

        def tile(panel: Value, width: int, row: Value, height: int, following: Value) -> None:
            name = dot_name(height, width * PANEL // isa.lanes)
            ahead = following + row // isa.rows[0] * part
            if reads_out and self.prefetches:
                place = place_of(f, panel, row, element)
                for each in range(height):
                    for line in range(width):
                        prefetch(f, place + f.out_stride * each + line * LINE, level=1)
            multiply_tile(f, name, panel, row, sums, stride, ahead=ahead, ahead_step=ahead_step)
            own = (sums, stride, panel, width, row, height, element)
            f.call(finish, **finished(f, *own))

        def column(panel: Value, width: int) -> None:
            following = following_weights(f, panel + width)
            in_blocks(
                f, f.rows, isa.rows, lambda row, height: tile(panel, width, row, height, following)
            )

        in_blocks(f, f.panels, widths, column)

    def _emit_dot(self, module: Module, isa: InstructionSet, rows: int, vectors: int) -> None:
        """Write the function of a tile.

        Its arguments are those of `MULTIPLIED`, and the bytes of later weights that each step
        brings into the second-level cache, at most a line.
        """
        lanes = isa.lanes
        sums_type = vector(I32, lanes)
        with module.function(dot_name(rows, vectors), f"{MULTIPLIED}, ahead_step") as f:
            places = [_place(f, f.weights, f.panel, lanes * each) for each in range(vectors)]
            starts = [f.load(sums_type, f.start + 4 * lanes * each) for each in range(vectors)]
            totals = [[f.variable(each) for each in starts] for _ in range(rows)]
            with f.loop(0, f.steps, self.steps_together) as step:
                codes: list[list[Value]] = []
                for each in range(self.steps_together):
                    weights = [
                        f.load(vector(I8, 4 * lanes), place + (step + each) * (4 * PANEL))
                        for place in places
                    ]
                    for row, sums in enumerate(totals):
                        if each == 0:
                            place = f.codes + (f.code_stride * row + step * 4)
                            codes.append(self._codes(f, isa, place))
                        for total, weight in zip(sums, weights, strict=True):
                            total.set(isa.dot.add(f, total.get(), codes[row][each], weight))
                if self.prefetches:
                    prefetch(f, f.ahead + step * f.ahead_step)
            for row, sums in enumerate(totals):
                for each, total in enumerate(sums):
                    f.store(total.get(), f.totals + (f.total_stride * row + 4 * lanes * each))

    def _codes(self, f: Function, isa: InstructionSet, place: Value) -> list[Value]:
        """Write the load of a row's codes, and return the codes of each step in all lanes."""
        loaded = f.load(vector(isa.dot.multiplied, self.steps_together), place)
        if isa.dot.is_signed:
            loaded = loaded ^ _SIGN_BITS
        return [
            loaded.shuffle([each] * isa.lanes).bits(vector(I8, 4 * isa.lanes))
            for each in range(self.steps_together)
        ]


def dot_name(rows: int, vectors: int) -> str:
    """Return the name of the function for a tile of a linear layer."""
    return f"dot_{rows}x{vectors}"


def _place(f: Function, weights: Value, panel: Value, column: int) -> Value:
    return weights + (panel * (column // PANEL) + column % PANEL * 4)
