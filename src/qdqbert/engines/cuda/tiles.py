"""Sizes of tiles of linear layers, by GPU architecture.

They are constants, as a search while a model runs would take seconds and could not be in a captured
graph. Sums of int8 products are exact, so that another tile changes no result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """A tile of a linear layer, and how a GPU computes it.

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result.
        step: Channels that are multiplied at a time.
        warps: Groups of 32 threads.
        stages: Steps whose operands are in shared memory at the same time.
    """

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


# Up to 511 tokens.
_FEW = (
    (128, Tile(rows=64, columns=64, step=128, warps=4, stages=4)),
    (0, Tile(rows=16, columns=64, step=128, warps=4, stages=4)),
)
_LOW = (512, Tile(rows=64, columns=128, step=128, warps=4, stages=3))
# 99 KiB of shared memory.
_SMALL = ((2048, Tile(rows=128, columns=128, step=64, warps=8, stages=4)), _LOW, *_FEW)
_SQUARE = (512, Tile(rows=128, columns=128, step=128, warps=8, stages=4))

TILES: Mapping[int, Sequence[tuple[int, Tile]]] = {
    80: ((2048, Tile(rows=128, columns=128, step=128, warps=8, stages=3)), _LOW, *_FEW),
    86: _SMALL,
    89: _SMALL,
    90: ((2048, Tile(rows=128, columns=256, step=128, warps=8, stages=3)), _SQUARE, *_FEW),
    100: (_SQUARE, *_FEW),
    120: _SMALL,
}
"""For each compute capability, times 10: least numbers of tokens, and the tile from there on."""

FLOAT_TILE = Tile(rows=32, columns=64, step=32, warps=4, stages=2)
"""The tile of layers in float32, whatever their size, so that a row's sums have one order."""

QUERIES = 64
"""Queries of a block of attention."""

# Columns of tiles whose sums an activation function changes, and of tiles with a gate's sums, too.
# More of them need more registers than there are.
_MOST_COLUMNS = {False: 128, True: 64}


def tile_of(
    capability: int, tokens: int, *, activation: str | None, gated: bool, bytes_of_code: int = 1
) -> Tile:
    """Return the tile of a linear layer.

    Args:
        capability: Compute capability of the GPU, times 10. Newer ones have the tiles of the one
            before.
        tokens: Number of rows.
        activation: Activation function of the layer; `None` without.
        gated: Whether a tile has the sums of a gate, too.
        bytes_of_code: Bytes of an operand: 1 in int8, 2 in float16.
    """
    known = max((each for each in TILES if each <= capability), default=min(TILES))
    found = next(tile for least, tile in TILES[known] if tokens >= least)
    if activation is not None:
        found = dataclasses.replace(found, columns=min(found.columns, _MOST_COLUMNS[gated]))
    return dataclasses.replace(found, step=max(found.step // bytes_of_code, 16))


def attention_of(size: int) -> dict[str, int]:
    """Return the constants of attention's kernel for heads of some channels.

    Results depend on `keys` only.
    """
    # Keys of wider heads would take more shared memory than some GPUs have.
    keys, warps = (64, 4) if size <= 128 else (32, 8)
    return {"queries": QUERIES, "keys": keys, "num_warps": warps, "num_stages": 2}
