"""Loops in blocks of several sizes, and in tiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.packing import padded_to
from qdqbert.engines.native.records import MODEL


def in_blocks(
    f: Function, count: Value, sizes: tuple[int, ...], body: Callable[[Value, int], None]
) -> None:
    """Write a loop in blocks of the first size, then one block of each smaller size if needed.

    Sizes after the first are powers of 2 down to 1, unless the first is 1. `body` writes a block,
    from its start and size.
    """
    rest = count % sizes[0]
    done = count - rest
    with f.loop(0, done, sizes[0]) as index:
        body(index, sizes[0])
    for size in sizes[1:]:
        part = rest & size
        with f.when(part.differs(0)):
            body(done, size)
        done = done + part


def in_tiles(
    f: Function,
    isa: InstructionSet,
    rows: Value,
    panels: Value,
    tile: Callable[[Value, int, Value, int], None],
) -> None:
    """Write loops over all rows of some panels, in the tiles of an instruction set.

    `tile` writes a tile, from its first panel, its vectors, its first row and its rows.
    """
    widths = tuple(vectors * isa.lanes // PANEL for vectors in isa.vectors)

    def column(panel: Value, width: int) -> None:
        vectors = width * PANEL // isa.lanes
        in_blocks(f, rows, isa.rows, lambda row, height: tile(panel, vectors, row, height))

    in_blocks(f, panels, widths, column)


@contextlib.contextmanager
def row_blocks(f: Function, first: Value, last: Value) -> Iterator[tuple[Value, Value]]:
    """Repeat the body for rows that are computed together, which are divided evenly.

    Yields:
        The first row and the number of rows.
    """
    count, most = last - first, MODEL.read(f.model, "block")
    blocks = ((count + (most - 1)) // most).maximum(1)
    each = padded_to((count + (blocks - 1)) // blocks, 32).maximum(1)
    with f.loop(first, last, each) as row:
        yield row, (last - row).minimum(each)
