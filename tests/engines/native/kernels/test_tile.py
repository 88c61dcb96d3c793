"""Tiles of sums of products, against numpy in 64 bits."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import SAFE_CODE, Kernels, bytes_of_row, few
from native_references import dot
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS
from qdqbert.engines.native.ir import Module
from qdqbert.engines.native.kernels.amx_tiles import AmxTiles, amx_name
from qdqbert.engines.native.kernels.dot import PANEL, pack
from qdqbert.engines.native.kernels.vector_tiles import dot_name

# What sums are where a kernel must not write.
_UNTOUCHED = -(2**31)


def weights_of(rng, columns: int, depth: int, largest: int) -> np.ndarray:
    """Return random weights, many of them the largest."""
    weights = rng.integers(-largest, largest + 1, (columns, depth))
    ends = rng.choice([-largest, largest], (columns, depth))
    return np.where(rng.random((columns, depth)) < 0.3, ends, weights).astype(np.int8)


def codes_of(rng, rows: int, depth: int) -> np.ndarray:
    codes = rng.integers(0, 256, (rows, depth))
    return np.where(rng.random((rows, depth)) < 0.3, 255, codes).astype(np.uint8)


def check_tile(kernels, name, rows, columns, depth, *, largest, seed, starts=True) -> None:
    """Compare a tile with numpy, and check that nothing around it is written."""
    spare = 3
    rng = np.random.default_rng(seed)
    codes = codes_of(rng, rows, depth + spare * 4)
    weights = weights_of(rng, columns, depth, largest)
    start = rng.integers(-(2**20), 2**20, columns).astype(np.int32) * starts
    panels = pack(weights, depth)
    sums = np.full((rows + 1, columns + PANEL), _UNTOUCHED, np.int32)
    kernels.with_tiles(
        name,
        codes[:, :depth],
        bytes_of_row(codes),
        panels,
        bytes_of_row(panels),
        sums[:rows, :columns],
        bytes_of_row(sums),
        depth // 4,
        # Tiles of AMX start at zero. All bring what is at an address into the cache.
        *((start, panels[-1:], 16) if starts else (panels[-1:],)),
    )
    np.testing.assert_array_equal(sums[:rows, :columns], dot(codes[:, :depth], weights, start))
    assert (sums[rows:] == _UNTOUCHED).all()
    assert (sums[:, columns:] == _UNTOUCHED).all()


@few
@given(data=st.data())
def test_a_tile_has_the_sums_of_numpy(kernels, data) -> None:
    isa = kernels.isa
    if isa.tiles == AmxTiles():
        pytest.skip("has other tiles")
    rows, vectors = data.draw(st.sampled_from(isa.rows)), data.draw(st.sampled_from(isa.vectors))
    check_tile(
        kernels,
        dot_name(rows, vectors),
        rows,
        vectors * isa.lanes,
        4 * data.draw(st.integers(1, 100), "steps"),
        largest=127 if isa.is_exact else SAFE_CODE,
        seed=data.draw(st.integers(0, 2**32)),
    )


@functools.cache
def exact_kernels(name: str) -> Kernels:
    """Return the tiles of an instruction set that take any weights."""
    module, isa = Module(), INSTRUCTION_SETS[name].exact()
    isa.tiles.emit(module, isa)
    return Kernels(module, name)


@few
@given(data=st.data())
def test_an_exact_tile_takes_any_weights(kernel, data) -> None:
    kernels = exact_kernels(kernel)
    isa = kernels.isa
    if isa.tiles == AmxTiles():
        pytest.skip("has other tiles")
    rows, vectors = data.draw(st.sampled_from(isa.rows)), data.draw(st.sampled_from(isa.vectors))
    check_tile(
        kernels,
        dot_name(rows, vectors),
        rows,
        vectors * isa.lanes,
        4 * data.draw(st.integers(1, 100), "steps"),
        largest=128,
        seed=data.draw(st.integers(0, 2**32)),
    )


@few
@given(
    rows=st.sampled_from((1, 2)),
    columns=st.sampled_from((1, 2)),
    depth=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
def test_tiles_of_amx_have_the_sums_of_numpy(kernels, rows, columns, depth, seed) -> None:
    if kernels.isa.tiles != AmxTiles():
        pytest.skip("has no tiles of AMX")
    check_tile(
        kernels,
        amx_name(rows, columns),
        16 * rows,
        16 * columns,
        64 * depth,
        largest=128,
        seed=seed,
        starts=False,
    )
