"""Fake quantization of values that stay in float32: inputs of attention's products, of adds.

    code = clip(rint(x * multiplier) + zero_point, low, high)
    value = (code - zero_point) * step

These products and adds are computed in float32. Their inputs are rounded as by the Q/DQ pairs of a
graph, so that a model that was trained with these quantizers keeps its results.
"""

from __future__ import annotations

from collections.abc import Callable

from qdqbert.engines.native.ir import F32, Function, Module, Type, Value, vector
from qdqbert.engines.native.records import ROUND_TRIP


def emit_round_trips(module: Module, lanes: int) -> None:
    """Write `round_rows` and `add_rounded_rows`.

    `round_rows` rounds rows in place. Its arguments are a `ROUND_TRIP` record or null, which leaves
    the rows as they are, the first channel, the first row at this channel and the bytes from one
    row to the next, and the numbers of channels and rows.

    `add_rounded_rows` adds other rows to rows in place, both rounded. Its arguments are the
    `ROUND_TRIP` records of the other rows and of the rows, the rows, the other rows, and the
    numbers of channels and rows, which follow each other.
    """
    floats = vector(F32, lanes)
    with module.function("round_rows", "record*, first, x*, stride, channels, rows") as f:
        is_there = f.record.differs(0)
        with f.when(is_there), f.loop(0, f.channels, lanes) as channel:
            rounded = rounding(f, f.record, f.first + channel, floats)
            with f.loop(0, f.rows) as row:
                place = f.x + (row * f.stride + channel * 4)
                f.store(rounded(f.load(floats, place)), place)
    with (
        module.function("add_rounded_rows", "records*, x*, other*, channels, rows") as f,
        f.loop(0, f.channels, lanes) as channel,
    ):
        add = rounded_sum(f, f.records, channel, floats)
        with f.loop(0, f.rows) as row:
            offset = (row * f.channels + channel) * 4
            place = f.x + offset
            f.store(add(f.load(floats, f.other + offset), f.load(floats, place)), place)


def rounding(f: Function, record: Value, channel: Value, floats: Type) -> Callable[[Value], Value]:
    """Return a function that writes the fake quantization of a vector, or of some rows in one.

    The first lane has a channel of a `ROUND_TRIP` record.
    """
    multiplier, step = (
        f.load(floats, ROUND_TRIP.read(record, name) + channel * 4)
        for name in ("multiplier", "step")
    )
    limits = [ROUND_TRIP.read(record, name) for name in ("shift", "low", "high")]
    is_kept = ROUND_TRIP.read(record, "is_kept").differs(0)

    def write(x: Value) -> Value:
        rows = x.type.lanes // floats.lanes
        shift, low, high = (f.splat(each, x.type.lanes) for each in limits)
        # The zero point and the limits are added to the constant that rounds; see
        # `functions.unsigned_codes`.
        code = f.fma(x, f.join([multiplier] * rows), shift).maximum(low).minimum(high)
        return is_kept.select(x, (code - shift) * f.join([step] * rows))

    return write


def rounded_sum(
    f: Function, records: Value, channel: Value, floats: Type
) -> Callable[[Value, Value], Value]:
    """Return a function that writes the sum of a value and the states, each rounded."""
    added, states = (
        rounding(f, records + index * ROUND_TRIP.size, channel, floats) for index in range(2)
    )
    return lambda value, state: states(state) + added(value)
