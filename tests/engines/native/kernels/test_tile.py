"""Tiles of sums of products, against numpy in 64 bits."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_kernels import SAFE_CODE, Kernels, bytes_of_row, few, unsigned
from native_references import dot
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS
from qdqbert.engines.native.instruction_sets.portable import PORTABLE
from qdqbert.engines.native.ir import Function, Module, Value
from qdqbert.engines.native.kernels.amx_tiles import AmxTiles, amx_name
from qdqbert.engines.native.kernels.dot import PANEL, first_sums, pack
from qdqbert.engines.native.kernels.vector_tiles import dot_name
from qdqbert.engines.native.memory import padded

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
    if kernels.isa.tiles.is_signed:
        start = -128 * weights.sum(axis=1, dtype=np.int32)
    panels = pack(weights, depth)
    first = first_sums(panels, start, is_signed=kernels.isa.is_signed)
    sums = np.full((rows + 1, columns + PANEL), _UNTOUCHED, np.int32)
    kernels.with_tiles(
        name,
        unsigned(kernels, codes)[:, :depth],
        bytes_of_row(codes),
        panels,
        bytes_of_row(panels),
        sums[:rows, :columns],
        bytes_of_row(sums),
        depth // 4,
        # Tiles of AMX start at zero. All bring what is at an address into the cache: so many bytes
        # in each step, or so many lines.
        first,
        panels[-1:],
        16 if starts else 2,
    )
    np.testing.assert_array_equal(sums[:rows, :columns], dot(codes[:, :depth], weights, start))
    assert (sums[rows:] == _UNTOUCHED).all()
    assert (sums[:, columns:] == _UNTOUCHED).all()


def depth_of(isa, steps: int) -> int:
    """Return the depth of so many steps, as far as tiles compute it."""
    return 4 * padded(steps, isa.tiles.steps_together)


@few
@given(data=st.data())
def test_a_tile_has_the_sums_of_numpy(kernels, data) -> None:
    isa = kernels.isa
    if isinstance(isa.tiles, AmxTiles):
        pytest.skip("has other tiles")
    rows, vectors = data.draw(st.sampled_from(isa.rows)), data.draw(st.sampled_from(isa.vectors))
    check_tile(
        kernels,
        dot_name(rows, vectors),
        rows,
        vectors * isa.lanes,
        depth_of(isa, data.draw(st.integers(1, 100), "steps")),
        largest=127 if isa.dot.is_exact else SAFE_CODE,
        seed=data.draw(st.integers(0, 2**32)),
    )


@functools.cache
def exact_kernels(name: str) -> Kernels:
    """Return the tiles of an instruction set that take any weights."""
    return tiles_of(INSTRUCTION_SETS[name].exact())


@functools.cache
def tiles_of(isa) -> Kernels:
    module = Module()
    isa.tiles.emit(module, isa)
    return Kernels(module, isa)


@few
@given(data=st.data())
def test_an_exact_tile_takes_any_weights(kernel, data) -> None:
    kernels = exact_kernels(kernel)
    isa = kernels.isa
    if isinstance(isa.tiles, AmxTiles):
        pytest.skip("has other tiles")
    rows, vectors = data.draw(st.sampled_from(isa.rows)), data.draw(st.sampled_from(isa.vectors))
    check_tile(
        kernels,
        dot_name(rows, vectors),
        rows,
        vectors * isa.lanes,
        depth_of(isa, data.draw(st.integers(1, 100), "steps")),
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
    if not isinstance(kernels.isa.tiles, AmxTiles):
        pytest.skip("has no tiles of AMX")
    name, sizes = amx_name(rows, columns), (16 * rows, 16 * columns, 64 * depth)
    for each in (kernels, tiles_of(kernels.isa.dynamic())):
        check_tile(each, name, *sizes, largest=128, seed=seed, starts=False)


def _add_signed(f: Function, total: Value, codes: Value, weights: Value) -> Value:
    """Write what ARM's `sdot` does, for any CPU."""
    for each in range(4):
        own = range(each, 4 * total.type.lanes, 4)
        one, other = (x.shuffle(own).cast("sext", total.type) for x in (codes, weights))
        total = total + one * other
    return total


@functools.cache
def signed_kernels() -> Kernels:
    """Return tiles that multiply signed numbers, as those of `neon-dotprod`."""
    theirs = INSTRUCTION_SETS["neon-dotprod"]
    dot = dataclasses.replace(theirs.dot, add=_add_signed)
    return tiles_of(dataclasses.replace(PORTABLE, dot=dot, tiles=theirs.tiles))


@few
@given(rows=st.sampled_from(PORTABLE.rows), steps=st.integers(1, 25), seed=st.integers(0, 2**32))
def test_tiles_of_signed_products_have_the_sums_of_numpy(rows, steps, seed) -> None:
    name = dot_name(rows, PORTABLE.vectors[0])
    check_tile(signed_kernels(), name, rows, PANEL, 16 * steps, largest=128, seed=seed)
