"""The products of attention in 16-bit integers, with AMX's tiles of bytes.

Queries are multiplied by keys as `short_products` does. Weights and values are divided into bytes,
the high ones with a sign. Their sums are the sums of 16-bit integers, in the same 32 bits:

    sum = high * high * 2^16 + (high * low + low * high) * 2^8 + low * low

64 codes of a row are the 64 low bytes, then the 64 high ones. Four bytes that are multiplied
together belong to every 16th token, so that nothing moves between the lanes of vectors. Panels of
values have the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from qdqbert.engines.native.functions import ROUNDING
from qdqbert.engines.native.instruction_set import InstructionSet, Operands
from qdqbert.engines.native.ir import F32, I32, I64, VOID, Function, Module, Value, vector
from qdqbert.engines.native.kernels.amx_tiles import move_tile
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.packing import DEPTH, padded_to
from qdqbert.engines.native.kernels.short_products import TOGETHER, CodesOf, Place, ShortProducts
from qdqbert.engines.native.memory import LINE

_TILE = 16 * LINE
# Sums of high bytes, of a high and a low one, and of low ones; bytes of weights; of values.
_SUMS, _WEIGHTS, _VALUES = (0, 1, 2), (3, 4), (5, 6)
# Products by the sums that they are added to, with the number of the bytes, low ones first.
_PRODUCTS = (
    ("tdpbsud", 1, 1, 0),
    ("tdpbssd", 0, 1, 1),
    ("tdpbuud", 2, 0, 0),
    ("tdpbusd", 1, 0, 1),
)
_FLOATS, _INTEGERS = vector(F32, PANEL), vector(I32, PANEL)


@dataclasses.dataclass(frozen=True)
class AmxProducts(ShortProducts):
    """Products by `short_product` and `byte_product`; see `instruction_set.Products`."""

    def emit(self, module: Module, isa: InstructionSet) -> None:
        """Write the functions of the products."""
        super().emit(module, isa)
        _emit_product(module)

    def bytes_of_values(self, tokens: Value) -> Value:
        """Return the bytes of some tokens in a panel of values."""
        return padded_to(tokens, DEPTH) * (2 * PANEL)

    def bytes_of_scores(self, columns: Value) -> Value:
        """Return the bytes from the scores of a query to the next: with a line for a scale."""
        return _place_of_scale(columns) + LINE

    def pack_panel(self, f: Function, row: Place, panel: Value, inverse: Value) -> Value:
        """Write the bytes of 16 channels of all values, and return the sums of their codes.

        `row` returns the place of these channels of a token.
        """
        sums = f.variable(f.constant(_INTEGERS, 0))
        with f.loop(0, f.length, DEPTH) as token, f.loop(0, PANEL) as line:
            codes = []
            for each in range(4):
                own = token + line + PANEL * each
                is_there = own < f.length
                x = f.load(_FLOATS, row(is_there.select(own, 0)))
                code = f.fma(x, inverse, ROUNDING).bits(_INTEGERS)
                codes.append(is_there.select(code, 0))
                sums.set(sums.get() + ((codes[-1] << 16) >> 16))
            tile = panel + (token * (2 * PANEL) + line * LINE)
            for part, bytes_ in enumerate(_bytes(f, codes)):
                f.store(bytes_, tile + _TILE * part)
        return sums.get()

    def multiply(self, f: Function, operands: Operands) -> None:
        """Write the contexts of some queries."""
        f.call(
            "byte_product",
            weights=operands.x,
            stride=operands.stride,
            rows=operands.rows,
            values=operands.weights,
            panel=operands.panel,
            panels=operands.columns // PANEL,
            scales=operands.end - 8 * PANEL,
            row_scales=operands.x + (operands.stride - LINE),
            out=operands.out,
            out_stride=operands.out_stride,
            depth=operands.depth,
        )

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
        """Write bytes over the weights of rows with factors, and return where their scales go."""
        with f.loop(0, length, DEPTH) as first:
            keys = [first + PANEL * each for each in range(4)]
            for row, factor in rows:
                found = [codes(row, factor, key) for key in keys]
                if windowed:
                    # There are values of tokens after a window. Those after a text are 0.
                    pairs = zip(keys, found, strict=True)
                    found = [(key < padded).select(code, 0) for key, code in pairs]
                for part, bytes_ in enumerate(_bytes(f, found)):
                    f.store(bytes_, row + (first * 2 + LINE * part))
        return _place_of_scale(padded)


def _place_of_scale(columns: Value) -> Value:
    """Return where a row has its scale: after its scores, and after the codes of 64 weights."""
    return columns.maximum(2 * DEPTH // 4) * 4


def _bytes(f: Function, codes: list[Value]) -> tuple[Value, Value]:
    """Return the low bytes of four codes in each lane, and the high ones."""
    first, second = ((one & 0xFFFF) | (other << 16) for one, other in (codes[:2], codes[2:]))
    low = (first & 0x00FF00FF) | ((second & 0x00FF00FF) << 8)
    high = f.shift_unsigned(first & -0xFF0100, 8) | (second & -0xFF0100)
    return low, high


def _emit_product(module: Module) -> None:
    """Write `byte_product`, the contexts of up to 32 weights.

    Its arguments are the first row of weights and the bytes from one row to the next, the number of
    rows, the first panel of values, the bytes from one panel to the next and the number of panels,
    the bytes from a panel to its scales, the scale of the first row of weights, the first row of
    the result and the bytes from one row to the next, and the number of tokens. It reads rows of
    weights up to a multiple of 16.

    While a panel is multiplied, the sums of the one before become results.
    """
    _emit_sums(module)
    _emit_finish(module)
    with module.function(
        "byte_product",
        "weights*, stride, rows, values*, panel, panels, scales, row_scales*, out*, out_stride, "
        "depth",
    ) as f:
        sums, size = f.allocate(I32, 2 * 2 * 3 * 16 * PANEL), 2 * 3 * _TILE
        # Without a token, sums are 0.
        with f.loop(0, f.depth.maximum(1), TOGETHER) as first:
            depth = (f.depth - first).minimum(TOGETHER)

            def finish(panel: Value) -> None:
                f.call(
                    "byte_finish",
                    **f.own("rows, row_scales, stride, out_stride"),
                    sums=sums + (panel & 1) * size,
                    scales=f.values + (panel * f.panel + f.scales),
                    out=f.out + panel * LINE,
                    adds=first,
                )

            with f.loop(0, f.panels) as panel:
                f.call(
                    "byte_sums",
                    **f.own("stride, rows"),
                    weights=f.weights + first * 2,
                    values=f.values + (panel * f.panel + first * (2 * PANEL)),
                    depth=depth,
                    out=sums + (panel & 1) * size,
                )
                with f.when(panel > 0):
                    finish(panel - 1)
            finish(f.panels - 1)


def _emit_sums(module: Module) -> None:
    """Write `byte_sums`, the three sums of up to 32 rows of weights and a panel of values."""
    with (
        module.function("byte_sums", "weights*, stride, rows, values*, depth, out*") as f,
        f.loop(0, f.rows, 16) as row,
    ):
        for tile in _SUMS:
            f.intrinsic("llvm.x86.tilezero", VOID, immediate=(tile,))
        with f.loop(0, f.depth, DEPTH) as token:
            for part in range(2):
                place = f.weights + (row * f.stride + token * 2 + LINE * part)
                move_tile(f, "tileloadd64", _WEIGHTS[part], place, f.stride)
                place = f.values + (token * (2 * PANEL) + _TILE * part)
                move_tile(f, "tileloadd64", _VALUES[part], place, f.constant(I64, LINE))
            for name, target, one, other in _PRODUCTS:
                tiles = (_SUMS[target], _WEIGHTS[one], _VALUES[other])
                f.intrinsic(f"llvm.x86.{name}", VOID, immediate=tiles)
        for tile in _SUMS:
            place = f.out + (row * (3 * LINE) + _TILE * tile)
            move_tile(f, "tilestored64", tile, place, f.constant(I64, LINE))


def _emit_finish(module: Module) -> None:
    """Write `byte_finish`, which turns three sums into contexts."""
    with module.function(
        "byte_finish", "sums*, rows, scales*, row_scales*, stride, out*, out_stride, adds"
    ) as f:
        scale = f.load(_FLOATS, f.scales)
        start = f.load(_INTEGERS, f.scales + 4 * PANEL)

        def rows(row: Value, adds: bool) -> None:
            place = f.sums + (row // 16 * (3 * _TILE) + row % 16 * LINE)
            high, middle, low = (f.load(_INTEGERS, place + _TILE * tile) for tile in _SUMS)
            total = (high << 16) + (middle << 8) + low + start
            own = f.splat(f.load(F32, f.row_scales + row * f.stride), PANEL)
            found = total.cast("sitofp", _FLOATS) * own * scale
            place = f.out + row * f.out_stride
            f.store(found + f.load(_FLOATS, place) if adds else found, place)

        with f.when(f.adds.equals(0)), f.loop(0, f.rows) as row:
            rows(row, False)
        with f.when(f.adds > 0), f.loop(0, f.rows) as row:
            rows(row, True)
