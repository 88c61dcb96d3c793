"""The products of attention: queries by keys in 16-bit integers, weights by values in float32.

Each query and each key has a scale of its own, with which its norm is below 2^15.5 and each of its
numbers has 16 bits. So no sum of products is above 2^31:

    score[i, j] = (query_codes[i] @ key_codes[j]) * query_scale[i] * key_scale[j]

The error of a score is about 2^-17 of the product of the two norms. 32 numbers of a row are 16
pairs, and pair `n` has the numbers `n` and `n + 16`, so that nothing moves between the lanes of
vectors. A row of queries has its pairs and then its scale. A panel of 16 keys has 16 columns of
each pair, and then the scale of each key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from qdqbert.engines.native.functions import ROUNDING
from qdqbert.engines.native.instruction_set import InstructionSet, Operands
from qdqbert.engines.native.ir import F32, I32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import in_tiles
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.float_products import FloatProducts
from qdqbert.engines.native.kernels.packing import pack_function, padded_to, transposed
from qdqbert.engines.native.memory import LINE

# Numbers of a row that are padded with zeros.
_DEPTH = 32
# The largest norm of a row of codes, and the largest code, with space for their rounding.
_NORM, _CODE = 46300.0, 32766.0
# Rows of zeros have a scale, too.
_SMALLEST = 1e-20
# Queries that are converted together.
_ROWS = 8
Fold = Callable[[Value, Value], Value]
_FLOATS, _INTEGERS = vector(F32, PANEL), vector(I32, PANEL)


@dataclasses.dataclass(frozen=True)
class ShortProducts(FloatProducts):
    """Products of queries and keys by `short_product`; see `instruction_set.Products`."""

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write `short_rows` and `short_product`."""
        _emit_rows(module)
        for rows in isa.rows:
            for vectors in isa.vectors:
                _emit_tile(module, isa.lanes, rows, vectors)
        _emit_product(module, isa)

    def emit_keys(self, module: Module) -> None:
        """Write `pack_keys`."""
        with pack_function(module, "pack_keys") as f:
            _pack_keys(f)

    def bytes_of_key(self, size: Value) -> Value:
        """Return the size of a key and its scale in bytes."""
        return padded_to(size, _DEPTH) * 2 + 4

    def prepared(
        self, f: Function, queries: Value, stride: Value, rows: Value, size: Value, out: Value
    ) -> tuple[Value, Value]:
        """Convert the queries."""
        f.call("short_rows", queries, stride, rows, size, out)
        return out, _bytes_of_query(size)

    def multiply_keys(self, f: Function, operands: Operands) -> None:
        """Write the scores of some queries."""
        f.call(
            "short_product",
            queries=operands.x,
            stride=operands.stride,
            rows=operands.rows,
            keys=operands.weights,
            panel=operands.panel,
            panels=operands.columns // PANEL,
            out=operands.out,
            out_stride=operands.columns * 4,
            pairs=padded_to(operands.depth, _DEPTH) // 2,
        )


def _bytes_of_query(size: Value) -> Value:
    return padded_to(size, _DEPTH) * 2 + LINE


def _emit_rows(module: Module) -> None:
    """Write `short_rows`.

    Its arguments are the first row of float32 and the bytes from one row to the next, the number of
    rows, their length, a multiple of 16, and the first row of the result. It reads and writes rows
    up to a multiple of 8.
    """
    with module.function("short_rows", x=PTR, stride=I64, rows=I64, size=I64, out=PTR) as f:
        inverses = f.allocate(F32, _ROWS)
        out_stride = _bytes_of_query(f.size)
        with f.loop(0, f.rows, _ROWS) as row:
            rows = [f.x + (row + each) * f.stride for each in range(_ROWS)]
            out = [f.out + (row + each) * out_stride for each in range(_ROWS)]
            scale, inverse = _scales(f, rows)
            f.store(inverse, inverses)
            for each, place in enumerate(out):
                f.store(scale.lane(each), place + padded_to(f.size, _DEPTH) * 2)
            with f.loop(0, f.size, _DEPTH) as channel:
                for pair, place in zip(_pairs(f, rows, channel, inverses), out, strict=True):
                    f.store(pair, place + channel * 2)


def _pack_keys(f: Function) -> None:
    """Write `pack_keys`, which reads rows up to a multiple of 16."""
    inverses = f.allocate(F32, PANEL)
    deep = padded_to(f.size, _DEPTH)
    with f.loop(0, f.length, PANEL) as token:
        rows = [f.source + (token + each) * f.stride for each in range(PANEL)]
        panel = f.out + token * (deep * 2 + 4)
        scale, inverse = _scales(f, rows)
        f.store(inverse, inverses)
        f.store(scale * f.splat(f.factor, PANEL), panel + deep * (2 * PANEL))
        with f.loop(0, f.size, _DEPTH) as channel:
            columns = transposed(_pairs(f, rows, channel, inverses))
            for each, column in enumerate(columns):
                f.store(column, panel + (channel * (2 * PANEL) + 4 * PANEL * each))


def _scales(f: Function, rows: list[Value]) -> tuple[Value, Value]:
    """Return the scale of each row in a lane, and its inverse."""
    squares, largest = ([f.variable(f.constant(_FLOATS, 0.0)) for _ in rows] for _ in range(2))
    with f.loop(0, f.size, PANEL) as channel:
        for row, total, most in zip(rows, squares, largest, strict=True):
            x = f.load(_FLOATS, row + channel * 4)
            square = x * x
            total.set(total.get() + square)
            most.set(square.maximum(most.get()))
    of_norm = _folded([each.get() for each in squares], Value.__add__) * _NORM**-2
    of_largest = _folded([each.get() for each in largest], Value.maximum) * _CODE**-2
    needed = of_largest.maximum(of_norm)
    scale = f.intrinsic(f"llvm.sqrt.{needed.type.suffix}", needed.type, needed)
    # The scale of a row that is not finite stays what it is.
    scale = f.constant(scale.type, _SMALLEST).maximum(scale)
    return scale, 1.0 / scale


def _folded(vectors: list[Value], fold: Fold) -> Value:
    """Return the sum or the largest lane of each vector, as a vector of them."""
    part = vectors[0].type.lanes
    while part > 1:
        # Each vector has partial results of some vectors, and then of twice as many.
        half = part // 2
        first = [each for each in range(2 * vectors[0].type.lanes) if each % part < half]
        second = [each + half for each in first]
        if len(vectors) == 1:
            count = vectors[0].type.lanes // 2
            first, second = first[:count], second[:count]
            vectors = [fold(vectors[0].shuffle(first), vectors[0].shuffle(second))]
        else:
            vectors = [
                fold(one.shuffle(first, other), one.shuffle(second, other))
                for one, other in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        part = half
    return vectors[0]


def _pairs(f: Function, rows: list[Value], channel: Value, inverses: Value) -> list[Value]:
    """Return the pairs of 32 numbers of each row, `<16 x i32>`."""
    has_other = f.size - channel > PANEL
    offset = has_other.select(f.constant(I64, 4 * PANEL), 0)
    found = []
    for each, row in enumerate(rows):
        place, inverse = row + channel * 4, f.splat(f.load(F32, inverses + 4 * each), PANEL)
        one, other = (
            # An integer in the lowest bits; see `functions.ROUNDING`.
            f.fma(f.load(_FLOATS, place + start), inverse, ROUNDING).bits(_INTEGERS)
            for start in (f.constant(I64, 0), offset)
        )
        found.append((one & 0xFFFF) | has_other.select(other << 16, 0))
    return found


def _emit_product(module: Module, isa: InstructionSet) -> None:
    """Write `short_product`, the scores of some queries.

    Its arguments are the first query and the bytes from one query to the next, the number of
    queries, the first panel of keys, the bytes from one panel to the next and the number of panels,
    the first row of the result and the bytes from one row to the next, and the number of pairs.
    """
    with module.function(
        "short_product",
        queries=PTR,
        stride=I64,
        rows=I64,
        keys=PTR,
        panel=I64,
        panels=I64,
        out=PTR,
        out_stride=I64,
        pairs=I64,
    ) as f:

        def tile(panel: Value, vectors: int, row: Value, height: int) -> None:
            f.call(
                f"short_{height}x{vectors}",
                **f.own("stride", "panel", "out_stride", "pairs"),
                queries=f.queries + row * f.stride,
                keys=f.keys + panel * f.panel,
                out=f.out + (row * f.out_stride + panel * (4 * PANEL)),
            )

        in_tiles(f, isa, f.rows, f.panels, tile)


def _emit_tile(module: Module, lanes: int, rows: int, vectors: int) -> None:
    floats, integers = vector(F32, lanes), vector(I32, lanes)
    with module.function(
        f"short_{rows}x{vectors}",
        queries=PTR,
        stride=I64,
        keys=PTR,
        panel=I64,
        out=PTR,
        out_stride=I64,
        pairs=I64,
    ) as f:
        totals = [
            [f.variable(f.constant(integers, 0)) for _ in range(vectors)] for _ in range(rows)
        ]
        columns = [lanes * each for each in range(vectors)]
        places = [f.keys + (f.panel * (column // PANEL) + column % PANEL * 4) for column in columns]
        queries = [f.queries + f.stride * each for each in range(rows)]
        with f.loop(0, f.pairs) as pair:
            keys = [f.load(integers, place + pair * (4 * PANEL)) for place in places]
            for query, sums in zip(queries, totals, strict=True):
                two = f.splat(f.load(I32, query + pair * 4), lanes)
                for total, key in zip(sums, keys, strict=True):
                    operands = (total.get(), two, key)
                    name = f"llvm.x86.avx512.vpdpwssd.{32 * lanes}"
                    total.set(f.intrinsic(name, integers, *operands))
        scales = [f.load(floats, place + f.pairs * (4 * PANEL)) for place in places]
        for each, (query, sums) in enumerate(zip(queries, totals, strict=True)):
            own = f.splat(f.load(F32, query + f.pairs * 4), lanes)
            for column, total, scale in zip(columns, sums, scales, strict=True):
                score = total.get().cast("sitofp", floats) * own * scale
                f.store(score, f.out + (f.out_stride * each + column * 4))
