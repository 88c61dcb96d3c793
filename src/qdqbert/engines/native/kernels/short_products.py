"""The products of attention in 16-bit integers.

Each query and each key has a scale of its own, with which its norm is below 2^15. So each of its
numbers has 16 bits, and no sum of products is above 2^30:

    score[i, j] = (query_codes[i] @ key_codes[j]) * query_scale[i] * key_scale[j]

The error of a score is about 2^-17 of the product of the two norms. 32 numbers of a row are 16
pairs, and pair `n` has the numbers `n` and `n + 16`, so that nothing moves between the lanes of
vectors. A row of queries has its pairs and then its scale. A panel of 16 keys has 16 columns of
each pair, and then the scale of each key.

Each channel of values and each row of weights has a scale, too. The sum of the weights of 256
tokens is below 2^17, and codes of values are so small that no sum of products is above 2^31:

    context[i, c] = (weight_codes[i] @ value_codes[:, c]) * weight_scale[i] * value_scale[c]

Products of more tokens are added in float32. The weights of up to 256 tokens have 16 bits without a
sign, from which 2^15 is subtracted, and sums start from 2^15 times the sum of the values. A pair of
weights or values has two tokens that follow each other. A panel of 16 channels of values has 16
columns of each pair, the scale of each channel, and what its sums start from, which is 0 for keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from qdqbert.engines.native.functions import ROUNDING
from qdqbert.engines.native.instruction_set import AddProducts, InstructionSet, Operands
from qdqbert.engines.native.ir import F32, I16, I32, I64, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks, in_tiles
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.float_products import FloatProducts
from qdqbert.engines.native.kernels.packing import pack_function, padded_to, place_of, transposed
from qdqbert.engines.native.memory import LINE

# Numbers of a row that are padded with zeros.
_DEPTH = 32
# The largest code, and the largest norm of a row of codes, with space for rounding.
_CODE, _NORM = 32766.0, 32760.0
# Tokens whose weighted values are added in integers.
TOGETHER = 256
# The largest code of a value, and the largest sum of codes of the weights of these tokens, with
# space for their rounding. The product of the two is below 2^31.
_VALUE, _WEIGHTS = 20_000.0, 107_000.0
# What is subtracted from codes of weights, so that they fit in 16 bits with a sign.
_MIDDLE = 2**15
# Rows of zeros have a scale, too.
_SMALLEST = 1e-20
# Queries that are converted together.
_ROWS = 16
_FLOATS, _INTEGERS = vector(F32, PANEL), vector(I32, PANEL)

CodesOf = Callable[[Value, Value, Value], Value]
"""Writes the codes of the weights of a row with a factor, for 16 keys from the given one."""

Place = Callable[[Value], Value]
"""Returns the place of some channels of a token."""


def _vpdpwssd(f: Function, total: Value, one: Value, other: Value) -> Value:
    name = f"llvm.x86.avx512.vpdpwssd.{32 * total.type.lanes}"
    return f.intrinsic(name, total.type, total, one, other)


def vpmaddwd(f: Function, total: Value, one: Value, other: Value) -> Value:
    """Write the operation in two instructions of AVX2."""
    shorts = vector(I16, 2 * total.type.lanes)
    products = one.bits(shorts), other.bits(shorts)
    return total + f.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, *products)


def multiply_pairs(f: Function, total: Value, one: Value, other: Value) -> Value:
    """Write the operation in instructions that every CPU has."""
    low = ((one << 16) >> 16) * ((other << 16) >> 16)
    return total + low + (one >> 16) * (other >> 16)


@dataclasses.dataclass(frozen=True)
class ShortProducts(FloatProducts):
    """Products by `short_product`; see `instruction_set.Products`.

    Attributes:
        add_pairs: Adds the products of two signed 16-bit integers in each 32-bit lane to sums.
    """

    # Compiled kernels are found by the repr, and that of a function differs in each process.
    add_pairs: AddProducts = dataclasses.field(default=_vpdpwssd, repr=False)
    rows_together = 32

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write `short_rows` and `short_product`."""
        _emit_rows(module)
        for rows in isa.rows:
            for vectors in isa.vectors:
                _emit_tile(module, isa.lanes, rows, vectors, self.add_pairs)
        _emit_product(module, isa)

    def emit_pack(self, module: Module, *, windowed: bool, bounded: bool, shared: bool) -> None:
        """Write `pack_keys` and `pack_values`."""
        with pack_function(module, "pack_keys") as f:
            _pack_keys(f, shared=shared)
        with pack_function(module, "pack_values") as f:
            middle = _middle(f, f.length, windowed=windowed)
            self._pack_values(f, middle, bounded=bounded, shared=shared)

    def _pack_values(self, f: Function, middle: Value, *, bounded: bool, shared: bool) -> None:
        """Write `pack_values`, for codes of weights minus `middle`."""
        end, size = self.bytes_of_values(f.length), self.panel_of_values(f.length)
        middles = f.splat(middle.cast("trunc", I32), PANEL)
        with f.loop(0, f.size, PANEL) as channel:
            panel = f.out + channel // PANEL * size

            def row(token: Value, channel: Value = channel) -> Value:
                return place_of(f, token, shared=shared) + channel * 4

            if bounded:
                scale, inverse = _scale_of(f.load(_FLOATS, f.bounds + channel * 4))
            else:
                scale, inverse = _value_scale(f, row)
            sums = self.pack_panel(f, row, panel, inverse)
            f.store(scale * f.splat(f.factor, PANEL), panel + end)
            f.store(sums * middles, panel + (end + 4 * PANEL))

    def pack_panel(self, f: Function, row: Place, panel: Value, inverse: Value) -> Value:
        """Write the codes of 16 channels of all values, and return their sums.

        `row` returns the place of these channels of a token.
        """
        sums = f.variable(f.constant(_INTEGERS, 0))

        def pack(token: Value, count: int) -> None:
            numbers = [f.load(_FLOATS, row(token + each)) for each in range(count)]
            one, *others = [f.fma(x, inverse, ROUNDING).bits(_INTEGERS) << 16 for x in numbers]
            other = others[0] if others else f.constant(_INTEGERS, 0)
            sums.set(sums.get() + (one >> 16) + (other >> 16))
            f.store(f.shift_unsigned(one, 16) | other, panel + token * (2 * PANEL))

        in_blocks(f, f.length, (2, 1), pack)
        return sums.get()

    def bytes_of_key(self, size: Value) -> Value:
        """Return the size of a key and its scale in bytes."""
        return padded_to(size, _DEPTH) * 2 + 8

    def bytes_of_values(self, tokens: Value) -> Value:
        """Return the bytes of some tokens in a panel of values."""
        return padded_to(tokens, 2) * (2 * PANEL)

    def panel_of_values(self, tokens: Value) -> Value:
        """Return the bytes of a panel of values and their scales."""
        return self.bytes_of_values(tokens) + 8 * PANEL

    def prepared(
        self, f: Function, queries: Value, stride: Value, rows: Value, size: Value, out: Value
    ) -> tuple[Value, Value]:
        """Convert the queries."""
        f.call("short_rows", queries, stride, rows, size, out)
        return out, _bytes_of_query(size)

    def multiply_keys(self, f: Function, operands: Operands) -> None:
        """Write the scores of some queries."""
        _multiply(f, operands, padded_to(operands.depth, _DEPTH) // 2)

    def multiply(self, f: Function, operands: Operands) -> None:
        """Write the contexts of some queries."""
        _multiply(f, operands, padded_to(operands.depth, 2) // 2)

    def end_weights(
        self,
        f: Function,
        rows: list[Value],
        totals: list[Value],
        length: Value,
        padded: Value,
        *,
        windowed: bool,
    ) -> None:
        """Write codes of weights over the weights, and then their scale."""
        middle = _middle(f, length, windowed=windowed).cast("sitofp", F32)
        largest = middle + _CODE
        shift = f.splat(middle * -1.0 + ROUNDING, PANEL)
        factors = [
            (f.constant(F32, _WEIGHTS) / total.minimum(float(TOGETHER))).minimum(largest)
            for total in totals
        ]

        def codes(row: Value, factor: Value, key: Value) -> Value:
            return f.fma(f.load(_FLOATS, row + key * 4), f.splat(factor, PANEL), shift).bits(
                _INTEGERS
            )

        place = self.store_codes(
            f, list(zip(rows, factors, strict=True)), codes, length, padded, windowed=windowed
        )
        for row, factor in zip(rows, factors, strict=True):
            f.store(1.0 / factor, row + place)

    def store_codes(
        self,
        f: Function,
        rows: Sequence[tuple[Value, Value]],
        codes: CodesOf,
        length: Value,
        padded: Value,
        *,
        windowed: bool,
    ) -> Value:
        """Write codes over the weights of rows with factors, and return where their scales go."""
        with f.loop(0, padded, PANEL) as key:
            for row, factor in rows:
                found = codes(row, factor, key)
                f.store(found.cast("trunc", vector(I16, PANEL)), row + key * 2)
        return padded_to(length, 2) * 2


def _multiply(f: Function, operands: Operands, pairs: Value) -> None:
    f.call(
        "short_product",
        queries=operands.x,
        stride=operands.stride,
        rows=operands.rows,
        keys=operands.weights,
        panel=operands.panel,
        panels=operands.columns // PANEL,
        scales=operands.end - 8 * PANEL,
        out=operands.out,
        out_stride=operands.out_stride,
        pairs=pairs,
    )


def _middle(f: Function, length: Value, *, windowed: bool) -> Value:
    """Return what is subtracted from codes of weights.

    Sums start from as many times the sum of all values. So it is 0 if they are not added at once.
    """
    middle = 0 if windowed else _MIDDLE
    return (length <= TOGETHER).select(f.constant(I64, middle), 0)


def _bytes_of_query(size: Value) -> Value:
    return padded_to(size, _DEPTH) * 2 + LINE


def _emit_rows(module: Module) -> None:
    """Write `short_rows`.

    Its arguments are the first row of float32 and the bytes from one row to the next, the number of
    rows, their length, a multiple of 16, and the first row of the result. It reads and writes rows
    up to a multiple of 16.
    """
    with module.function("short_rows", "x*, stride, rows, size, out*") as f:
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


def _pack_keys(f: Function, *, shared: bool) -> None:
    """Write `pack_keys`, which reads rows up to a multiple of 16."""
    inverses = f.allocate(F32, PANEL)
    deep = padded_to(f.size, _DEPTH)
    with f.loop(0, f.length, PANEL) as token:
        rows = [place_of(f, token + each, shared=shared) for each in range(PANEL)]
        panel = f.out + token * (deep * 2 + 8)
        scale, inverse = _scales(f, rows)
        f.store(inverse, inverses)
        f.store(scale * f.splat(f.factor, PANEL), panel + deep * (2 * PANEL))
        f.store(f.constant(_INTEGERS, 0), panel + (deep * (2 * PANEL) + 4 * PANEL))
        with f.loop(0, f.size, _DEPTH) as channel:
            columns = transposed(_pairs(f, rows, channel, inverses))
            for each, column in enumerate(columns):
                f.store(column, panel + (channel * (2 * PANEL) + 4 * PANEL * each))


def _value_scale(f: Function, row: Place) -> tuple[Value, Value]:
    """Return the scale of each of 16 channels of values, and its inverse."""
    largest = f.variable(f.constant(_INTEGERS, 0))

    def compare(token: Value, count: int) -> None:
        # Bits of floats without their signs have the order of the floats, and NaN is largest.
        for each in range(count):
            bits = f.load(_INTEGERS, row(token + each)) & 0x7FFFFFFF
            largest.set(bits.maximum(largest.get()))

    in_blocks(f, f.length, (4, 2, 1), compare)
    return _scale_of(largest.get().bits(_FLOATS))


def _scale_of(largest: Value) -> tuple[Value, Value]:
    """Return the scales of channels with these largest values, and their inverses."""
    smallest = largest.function.constant(_FLOATS, _SMALLEST)
    scale = smallest.maximum(largest * (1 / _VALUE))
    return scale, 1.0 / scale


def _scales(f: Function, rows: list[Value]) -> tuple[Value, Value]:
    """Return the scale of each row in a lane, and its inverse."""
    squares = [f.variable(f.constant(_FLOATS, 0.0)) for _ in rows]
    with f.loop(0, f.size, PANEL) as channel:
        for row, total in zip(rows, squares, strict=True):
            x = f.load(_FLOATS, row + channel * 4)
            total.set(f.fma(x, x, total.get()))
    needed = _folded([each.get() for each in squares]) * _NORM**-2
    scale = f.intrinsic(f"llvm.sqrt.{needed.type.suffix}", needed.type, needed)
    # The scale of a row that is not finite stays what it is.
    scale = f.constant(scale.type, _SMALLEST).maximum(scale)
    return scale, 1.0 / scale


def _folded(vectors: list[Value]) -> Value:
    """Return the sum of each vector, as a vector of them."""
    part = vectors[0].type.lanes
    while part > 1:
        # Each vector has partial results of some vectors, and then of twice as many.
        half = part // 2
        first = [each for each in range(2 * vectors[0].type.lanes) if each % part < half]
        second = [each + half for each in first]
        if len(vectors) == 1:
            count = vectors[0].type.lanes // 2
            first, second = first[:count], second[:count]
            vectors = [vectors[0].shuffle(first) + vectors[0].shuffle(second)]
        else:
            vectors = [
                one.shuffle(first, other) + one.shuffle(second, other)
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
    """Write `short_product`, the scores of some queries, or the contexts of some weights.

    Its arguments are the first query and the bytes from one query to the next, the number of
    queries, the first panel of keys, the bytes from one panel to the next and the number of panels,
    the bytes from a panel to its scales, the first row of the result and the bytes from one row to
    the next, and the number of pairs.
    """
    with module.function(
        "short_product",
        "queries*, stride, rows, keys*, panel, panels, scales, out*, out_stride, pairs",
    ) as f:

        def tile(panel: Value, vectors: int, row: Value, height: int) -> None:
            f.call(
                f"short_{height}x{vectors}",
                **f.own("stride, panel, scales, out_stride, pairs"),
                queries=f.queries + row * f.stride,
                keys=f.keys + panel * f.panel,
                out=f.out + (row * f.out_stride + panel * (4 * PANEL)),
            )

        in_tiles(f, isa, f.rows, f.panels, tile)


def _emit_tile(module: Module, lanes: int, rows: int, vectors: int, add_pairs: AddProducts) -> None:
    floats, integers = vector(F32, lanes), vector(I32, lanes)
    with module.function(
        f"short_{rows}x{vectors}", "queries*, stride, keys*, panel, scales, out*, out_stride, pairs"
    ) as f:
        columns = [lanes * each for each in range(vectors)]
        places = [f.keys + (f.panel * (column // PANEL) + column % PANEL * 4) for column in columns]
        queries = [f.queries + f.stride * each for each in range(rows)]
        starts = [f.load(integers, place + f.scales + 4 * PANEL) for place in places]
        out = [
            f.out + (f.out_stride * row + column * 4) for row in range(rows) for column in columns
        ]
        # Without a pair, sums are 0.
        with f.loop(0, f.pairs.maximum(1), TOGETHER // 2) as first:
            totals = [[f.variable(start) for start in starts] for _ in range(rows)]
            with f.loop(first, f.pairs.minimum(first + TOGETHER // 2)) as pair:
                keys = [f.load(integers, place + pair * (4 * PANEL)) for place in places]
                for query, sums in zip(queries, totals, strict=True):
                    two = f.splat(f.load(I32, query + pair * 4), lanes)
                    for total, key in zip(sums, keys, strict=True):
                        total.set(add_pairs(f, total.get(), two, key))
            scales = [f.load(floats, place + f.scales) for place in places]
            found = []
            for query, sums in zip(queries, totals, strict=True):
                own = f.splat(f.load(F32, query + f.pairs * 4), lanes)
                found += [
                    f.variable(total.get().cast("sitofp", floats) * own * scale)
                    for total, scale in zip(sums, scales, strict=True)
                ]
            with f.when(first > 0):
                for each, place in zip(found, out, strict=True):
                    each.set(each.get() + f.load(floats, place))
            for each, place in zip(found, out, strict=True):
                f.store(each.get(), place)
