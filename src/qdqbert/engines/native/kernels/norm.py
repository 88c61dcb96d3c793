"""LayerNorm, and the codes of a row.

A few rows are normalized together, so that their steps do not wait for each other. The last pass
over them also makes their codes, or finds the range of each row if scales are dynamic.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.functions import LANES, unsigned_codes
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I64, PTR, Function, Module, Type, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dynamic_codes import quantize_dynamically
from qdqbert.engines.native.kernels.round_trip import rounded_sum
from qdqbert.engines.native.records import CODES, NORM, THREAD
from qdqbert.quantization.hadamard import Hadamard

NORMED_ROWS = 4
"""Rows that are normalized together."""

_ROWS = (NORMED_ROWS, 2, 1)

Write = Callable[[Value, Sequence[Value]], None]
"""Writes the operations on normalized values: a channel, and the vector of each row."""


def emit_norms(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `layer_norm`, `quantize_rows`, and `quantize_normed` or `layer_norm_codes`.

    `norm_heads` is `layer_norm` of each head of queries or keys.
    `add_normed_rows` adds the LayerNorm of other rows to rows.
    `quantize_normed` is for layers that normalize first, and `layer_norm_codes` for the others.
    `quantize_tokens` is `quantize_rows` with dynamic scales, for a head that scores words.
    `spread_states` and `spread_inner` are `quantize_rows` of channels that are spread.
    """
    states, dynamic = features.spread_states, dataclasses.replace(features, dynamic=True)
    with module.function("layer_norm", "norm*, x*, stride, rows") as f:
        _layer_norm(f)
    if features.norms_each_head:
        with module.function("norm_heads", "norm*, x*, stride, rows, heads, size") as f:
            _norm_heads(f)
    if features.norms_parts:
        with module.function(
            "add_normed_rows", "norm*, x*, other*, channels, rows, roundings*"
        ) as f:
            _add_normed_rows(f, features)
    with _codes_function(module, "quantize_rows") as f:
        _quantize_rows(f, isa, features)
    if features.scores_words:
        with _codes_function(module, "quantize_tokens") as f:
            _quantize_rows(f, isa, dynamic)
    for name, matrix in (("spread_states", states), ("spread_inner", features.spread_inner)):
        if matrix is not None:
            with _codes_function(module, name, spread=PTR) as f:
                _quantize_rows(f, isa, dynamic, matrix)
    if features.norms_first:
        with _codes_function(module, "quantize_normed", spread=PTR, norm=PTR, normed=PTR) as f:
            _quantize_normed(f, isa, features)
    else:
        with _codes_function(module, "layer_norm_codes", spread=PTR, norm=PTR) as f:
            _layer_norm_codes(f, isa, features)


def quantize_input(
    f: Function, features: Features, norm: Value, codes: Value, *rows: Value
) -> None:
    """Write the codes of a part's input states, in a function with `f.thread`.

    The `NORM` record of the part is for layers that normalize first. `rows` are the other arguments
    of `quantize_rows`.
    """
    spread = THREAD.read(f.thread, "spread")
    if features.norms_first:
        f.call("quantize_normed", codes, *rows, spread, norm, THREAD.read(f.thread, "normed"))
    else:
        quantize_rows(f, "states", features.spread_states, spread, codes, *rows)


def quantize_rows(
    f: Function, name: str, matrix: Hadamard | None, spread: Value, *arguments: Value
) -> None:
    """Write the codes of rows whose channels are spread if there is a matrix for them.

    `name` is what the rows are: "states" or "inner". `spread` is the buffer for rows that are
    spread, and `arguments` are those of `quantize_rows`.
    """
    if matrix is None:
        f.call("quantize_rows", *arguments)
    else:
        f.call(f"spread_{name}", *arguments, spread)


def _codes_function(
    module: Module, name: str, **arguments: Type
) -> contextlib.AbstractContextManager[Function]:
    """Return a function that writes codes.

    Its arguments are a `CODES` record, the first row of float32, the bytes from one row to the
    next, the number of channels, the number of rows, the first row of codes and the bytes from one
    row to the next, where the scales go if they are dynamic, and further ones: `spread` is a buffer
    for `NORMED_ROWS` rows.
    """
    return module.function(
        name, "extra*, x*, stride, channels, rows, out*, out_stride, row_scales*", **arguments
    )


def _layer_norm(f: Function) -> None:
    """Write `layer_norm`, which normalizes rows in place.

    Its arguments are a `NORM` record, the first row, the bytes from one row to the next, and the
    number of rows. Channels after the width are padding: they have to be zero, and stay zero,
    because their weight and bias are zero.
    """

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        _normalize(f, rows, f.stride // 4, functools.partial(_store, f, rows))

    in_blocks(f, f.rows, _ROWS, block)


def _norm_heads(f: Function) -> None:
    """Write `norm_heads`, which normalizes the heads of rows in place, by the same weight.

    Its arguments are a `NORM` record, the first row, the bytes from one row to the next, the number
    of rows, and the number of heads and the channels of each, with padding that stays zero.
    """

    def block(head: Value, count: int) -> None:
        heads = [first + (head + each) * (f.size * 4) for each in range(count)]
        _normalize(f, heads, f.size, functools.partial(_store, f, heads))

    with f.loop(0, f.rows) as row:
        first = f.x + row * f.stride
        in_blocks(f, f.heads, _ROWS, block)


def _add_normed_rows(f: Function, features: Features) -> None:
    """Write `add_normed_rows`, which adds the LayerNorm of other rows to rows in place.

    Its arguments are a `NORM` record, the rows, the other rows, the numbers of channels and rows,
    which follow each other, and two `ROUND_TRIP` records, of what is added and of the rows, which
    are read if the model has some.
    """
    floats = vector(F32, LANES)

    def block(row: Value, height: int) -> None:
        offsets = [(row + each) * f.channels * 4 for each in range(height)]

        def write(channel: Value, values: Sequence[Value]) -> None:
            add = rounded_sum(f, f.roundings, channel, floats) if features.rounds_adds else _sum
            for offset, value in zip(offsets, values, strict=True):
                place = f.x + (offset + channel * 4)
                f.store(add(value, f.load(floats, place)), place)

        _normalize(f, [f.other + each for each in offsets], f.channels, write)

    in_blocks(f, f.rows, _ROWS, block)


def _sum(value: Value, state: Value) -> Value:
    return state + value


def _layer_norm_codes(f: Function, isa: InstructionSet, features: Features) -> None:
    """Write `layer_norm_codes`: `layer_norm`, and the codes of the normalized rows.

    The record of the LayerNorm is the last argument.
    """

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        _normalize_to_codes(f, isa, row, rows, rows, features)

    in_blocks(f, f.rows, _ROWS, block)


def _quantize_normed(f: Function, isa: InstructionSet, features: Features) -> None:
    """Write `quantize_normed`: the codes of rows after a LayerNorm, which does not change the rows.

    The last arguments are a `NORM` record, or null to quantize the rows themselves, and a buffer
    for `NORMED_ROWS` rows, which is used if scales are dynamic.
    """
    is_normed = f.norm.differs(0)
    with f.when(is_normed ^ 1):
        rows = (f.x, f.stride, f.channels, f.rows, f.out, f.out_stride, f.row_scales)
        quantize_rows(f, "states", features.spread_states, f.spread, f.extra, *rows)

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        normed = [f.normed + f.channels * (4 * each) for each in range(height)]
        kept = normed if features.dynamic else ()
        _normalize_to_codes(f, isa, row, rows, kept, features)

    with f.when(is_normed):
        in_blocks(f, f.rows, _ROWS, block)


def _quantize_rows(
    f: Function, isa: InstructionSet, features: Features, matrix: Hadamard | None = None
) -> None:
    floats = vector(F32, LANES)

    def block(row: Value, height: int) -> None:
        rows = [f.x + (row + each) * f.stride for each in range(height)]
        if features.dynamic:
            quantize_dynamically(f, isa, row, rows, matrix)
            return
        write = _codes(f, row, height, features)
        with f.loop(0, f.channels, LANES) as channel:
            write(channel, [f.load(floats, x + channel * 4) for x in rows])

    in_blocks(f, f.rows, _ROWS if features.dynamic else (1,), block)


def _normalize_to_codes(
    f: Function,
    isa: InstructionSet,
    row: Value,
    rows: Sequence[Value],
    normed: Sequence[Value],
    features: Features,
) -> None:
    """Write the codes of some normalized rows, in a function of `_codes_function`.

    The normalized rows go to `normed`, which is empty to keep only codes, if scales are static.
    """
    if features.dynamic:
        _normalize(f, rows, f.channels, functools.partial(_store, f, normed))
        quantize_dynamically(f, isa, row, normed, features.spread_states)
        return
    write_codes = _codes(f, row, len(rows), features)

    def write(channel: Value, values: Sequence[Value]) -> None:
        if normed:
            _store(f, normed, channel, values)
        write_codes(channel, values)

    _normalize(f, rows, f.channels, write)


def _normalize(f: Function, rows: Sequence[Value], channels: Value, write: Write) -> None:
    """Write the LayerNorm of some rows with padding, by the record `f.norm`."""
    lanes, floats = LANES, vector(F32, LANES)
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


def _codes(f: Function, row: Value, count: int, features: Features) -> Write:
    """Return a writer of the codes of `count` rows from `row` on, unless scales are dynamic."""
    floats = vector(F32, LANES)
    places = [f.out + (row + each) * f.out_stride for each in range(count)]
    if features.floats:
        return functools.partial(_store, f, places)
    multiplier = CODES.read(f.extra, "multiplier")
    shift = f.splat(CODES.read(f.extra, "shift"), LANES)

    def write(channel: Value, values: Sequence[Value]) -> None:
        factor = f.load(floats, multiplier + channel * 4)
        for value, place in zip(values, places, strict=True):
            f.store_bytes(unsigned_codes(f, value, factor, shift), place + channel)

    return write
