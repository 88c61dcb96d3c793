"""LayerNorm, and the codes of a row.

A few rows are normalized together, so that their steps do not wait for each other. The last pass
over them also makes their codes, or finds the range of each row if scales are dynamic.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.functions import ROUNDING, unsigned_codes
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import (
    F32,
    I64,
    PTR,
    Function,
    Module,
    Type,
    Value,
    Variable,
    vector,
)
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.records import CODES, NORM, ROW_SCALE, THREAD

NORMED_ROWS = 4
"""Rows that are normalized together."""

_ROWS = (NORMED_ROWS, 2, 1)
# Range of rows of zeros.
_SMALLEST = 1e-30

Write = Callable[[Value, Sequence[Value]], None]
"""Writes the operations on normalized values: a channel, and the vector of each row."""


def emit_norms(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `layer_norm`, `quantize_rows`, and `quantize_normed` or `layer_norm_codes`.

    `quantize_normed` is for layers that normalize first, and `layer_norm_codes` for the others.
    `quantize_tokens` is `quantize_rows` with dynamic scales, for a head that scores words.
    """
    lanes, dynamic = isa.lanes, features.dynamic
    with module.function("layer_norm", "norm*, x*, stride, rows") as f:
        _layer_norm(f, lanes)
    with _codes_function(module, "quantize_rows") as f:
        _quantize_rows(f, lanes, dynamic=dynamic)
    if features.scores_words:
        with _codes_function(module, "quantize_tokens") as f:
            _quantize_rows(f, lanes, dynamic=True)
    if features.norms_first:
        with _codes_function(module, "quantize_normed", norm=PTR, normed=PTR) as f:
            _quantize_normed(f, lanes, dynamic=dynamic)
    else:
        with _codes_function(module, "layer_norm_codes", norm=PTR) as f:
            _layer_norm_codes(f, lanes, dynamic=dynamic)


def quantize_input(
    f: Function, features: Features, norm: Value, codes: Value, *rows: Value
) -> None:
    """Write the codes of a part's input states, in a function with `f.thread`.

    The `NORM` record of the part is for layers that normalize first. `rows` are the other arguments
    of `quantize_rows`.
    """
    if features.norms_first:
        f.call("quantize_normed", codes, *rows, norm, THREAD.read(f.thread, "normed"))
    else:
        f.call("quantize_rows", codes, *rows)


def _codes_function(
    module: Module, name: str, **arguments: Type
) -> contextlib.AbstractContextManager[Function]:
    """Return a function that writes codes.

    Its arguments are a `CODES` record, the first row of float32, the bytes from one row to the
    next, the number of channels, the number of rows, the first row of codes and the bytes from one
    row to the next, where the scales and zero points go if they are dynamic, and further ones.
    """
    return module.function(
        name, "extra*, x*, stride, channels, rows, out*, out_stride, row_scales*", **arguments
    )


def _layer_norm(f: Function, lanes: int) -> None:
    """Write `layer_norm`, which normalizes rows in place.

    Its arguments are a `NORM` record, the first row, the bytes from one row to the next, and the
    number of rows. Channels after the width are padding: they have to be zero, and stay zero,
    because their weight and bias are zero.
    """

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        _normalize(f, lanes, rows, f.stride // 4, functools.partial(_store, f, rows))

    in_blocks(f, f.rows, _ROWS, block)


def _layer_norm_codes(f: Function, lanes: int, *, dynamic: bool) -> None:
    """Write `layer_norm_codes`: `layer_norm`, and the codes of the normalized rows.

    The record of the LayerNorm is the last argument.
    """

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        _normalize_to_codes(f, lanes, row, rows, rows, dynamic=dynamic)

    in_blocks(f, f.rows, _ROWS, block)


def _quantize_normed(f: Function, lanes: int, *, dynamic: bool) -> None:
    """Write `quantize_normed`: the codes of rows after a LayerNorm, which does not change the rows.

    The last arguments are a `NORM` record, or null to quantize the rows themselves, and a buffer
    for `NORMED_ROWS` rows, which is used if scales are dynamic.
    """
    is_normed = f.norm.differs(0)
    with f.when(is_normed ^ 1):
        rows = (f.x, f.stride, f.channels, f.rows, f.out, f.out_stride, f.row_scales)
        f.call("quantize_rows", f.extra, *rows)

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        normed = [f.normed + f.channels * (4 * each) for each in range(height)]
        _normalize_to_codes(f, lanes, row, rows, normed if dynamic else (), dynamic=dynamic)

    with f.when(is_normed):
        in_blocks(f, f.rows, _ROWS, block)


def _quantize_rows(f: Function, lanes: int, *, dynamic: bool) -> None:
    """Write `quantize_rows`."""
    floats = vector(F32, lanes)

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        ranges = _Ranges(f, lanes, height)
        write = ranges.include if dynamic else _codes(f, lanes, row, height)
        with f.loop(0, f.channels, lanes) as channel:
            write(channel, [f.load(floats, x + channel * 4) for x in rows])
        if dynamic:
            ranges.quantize(row, rows)

    in_blocks(f, f.rows, _ROWS if dynamic else (1,), block)


def _normalize_to_codes(
    f: Function,
    lanes: int,
    row: Value,
    rows: Sequence[Value],
    normed: Sequence[Value],
    *,
    dynamic: bool,
) -> None:
    """Write the codes of some normalized rows, in a function of `_codes_function`.

    The normalized rows go to `normed`, which is empty to keep only codes, if scales are static.
    """
    ranges = _Ranges(f, lanes, len(rows))
    write_codes = ranges.include if dynamic else _codes(f, lanes, row, len(rows))

    def write(channel: Value, values: Sequence[Value]) -> None:
        if normed:
            _store(f, normed, channel, values)
        write_codes(channel, values)

    _normalize(f, lanes, rows, f.channels, write)
    if dynamic:
        ranges.quantize(row, normed)


def _normalize(
    f: Function, lanes: int, rows: Sequence[Value], channels: Value, write: Write
) -> None:
    """Write the LayerNorm of some rows with padding, by the record `f.norm`."""
    floats = vector(F32, lanes)
    weight, bias = NORM.each(f.norm, "weight", "bias")
    width = NORM.read(f.norm, "width")
    count = width.cast("sitofp", F32)
    whole = width - width % lanes
    totals = [f.variable(f.constant(floats, 0.0)) for _ in rows]
    with f.loop(0, channels, lanes) as channel:
        for x, total in zip(rows, totals, strict=True):
            total.set(total.get() + f.load(floats, x + channel * 4))
    subtracts_mean = NORM.read(f.norm, "subtracts_mean")
    means = [f.splat(f.sum_of(each.get()) / count * subtracts_mean, lanes) for each in totals]
    for total in totals:
        total.set(0.0)
    with f.loop(0, whole, lanes) as channel:
        for x, total, mean in zip(rows, totals, means, strict=True):
            centered = f.load(floats, x + channel * 4) - mean
            total.set(f.fma(centered, centered, total.get()))
    with f.when(whole.differs(width)):
        index = f.constant(vector(I64, lanes), range(lanes))
        is_real = index < f.splat(width - whole, lanes)
        for x, total, mean in zip(rows, totals, means, strict=True):
            centered = is_real.select(f.load(floats, x + whole * 4) - mean, 0.0)
            total.set(f.fma(centered, centered, total.get()))
    epsilon = NORM.read(f.norm, "epsilon")
    deviations = [
        f.intrinsic("llvm.sqrt.f32", F32, f.sum_of(each.get()) / count + epsilon) for each in totals
    ]
    scales = [f.splat(1.0 / each, lanes) for each in deviations]
    with f.loop(0, channels, lanes) as channel:
        factor, offset = (f.load(floats, each + channel * 4) for each in (weight, bias))
        centered_rows = [
            (f.load(floats, x + channel * 4) - mean) * scale
            for x, mean, scale in zip(rows, means, scales, strict=True)
        ]
        write(channel, [f.fma(each, factor, offset) for each in centered_rows])


def _store(f: Function, rows: Sequence[Value], channel: Value, values: Sequence[Value]) -> None:
    for row, value in zip(rows, values, strict=True):
        f.store(value, row + channel * 4)


def _codes(f: Function, lanes: int, row: Value, count: int) -> Write:
    """Return a writer of the codes of `count` rows from `row` on, with static scales."""
    floats = vector(F32, lanes)
    multiplier = CODES.read(f.extra, "multiplier")
    shift = f.splat(CODES.read(f.extra, "shift"), lanes)
    places = [f.out + (row + each) * f.out_stride for each in range(count)]

    def write(channel: Value, values: Sequence[Value]) -> None:
        factor = f.load(floats, multiplier + channel * 4)
        for value, place in zip(values, places, strict=True):
            f.store_bytes(unsigned_codes(f, value, factor, shift), place + channel)

    return write


class _Ranges:
    """Ranges of some rows, from which dynamic scales are made."""

    def __init__(self, f: Function, lanes: int, count: int) -> None:
        """Start with empty ranges, in a function of `_codes_function`."""
        self._function, self._floats = f, vector(F32, lanes)
        self._multiplier = CODES.read(f.extra, "multiplier")
        # Zero is always in the range.
        self._ends = [
            [f.variable(f.constant(self._floats, 0.0)) for _ in range(2)] for _ in range(count)
        ]

    def include(self, channel: Value, values: Sequence[Value]) -> None:
        """Write the extension of the ranges by a vector of each row."""
        f = self._function
        multiplier = f.load(self._floats, self._multiplier + channel * 4)
        for value, ends in zip(values, self._ends, strict=True):
            found = value * multiplier
            high, low = ends
            high.set(found.maximum(high.get()))
            low.set(found.minimum(low.get()))

    def quantize(self, row: Value, rows: Sequence[Value]) -> None:
        """Write scales, zero points and codes of the rows from `row` on."""
        f, lanes = self._function, self._floats.lanes
        parameters = [
            self._parameters(ends, f.row_scales + (row + each) * ROW_SCALE)
            for each, ends in enumerate(self._ends)
        ]
        places = [f.out + (row + each) * f.out_stride for each in range(len(rows))]
        with f.loop(0, f.channels, lanes) as channel:
            multiplier = f.load(self._floats, self._multiplier + channel * 4)
            for x, place, (inverse, shift) in zip(rows, places, parameters, strict=True):
                value = f.load(self._floats, x + channel * 4)
                codes = unsigned_codes(f, value, multiplier * inverse, shift)
                f.store_bytes(codes, place + channel)

    def _parameters(self, ends: Sequence[Variable], place: Value) -> tuple[Value, Value]:
        """Write scale and zero point of a row to `place`.

        Returns:
            The inverse of the scale, and `ROUNDING + zero_point`, in all lanes.
        """
        f, lanes = self._function, self._floats.lanes
        high, minus_low = f.maximum_of(ends[0].get()), f.minimum_of(ends[1].get()) * -1.0
        covered = (high + minus_low).maximum(_SMALLEST)
        inverse = 255.0 / covered
        shift = minus_low * inverse + ROUNDING
        f.store(covered * (1 / 255), place)
        f.store((shift - ROUNDING) * (1 / 128) - 1.0, place + 4)
        return f.splat(inverse, lanes), f.splat(shift, lanes)
