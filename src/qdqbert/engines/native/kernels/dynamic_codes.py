"""Codes of rows with a scale of their own, symmetric around the code 128, or 0 if they are signed.

Channels of a row may be spread before: multiplied by a Hadamard matrix, in additions of vectors and
of their lanes. The spread row goes to a buffer, from which the codes are made.
"""

from __future__ import annotations

from collections.abc import Sequence

from qdqbert.engines.native.functions import ROUNDING
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I32, Function, Type, Value, Variable, vector
from qdqbert.engines.native.records import CODES, ROW_SCALE
from qdqbert.quantization.hadamard import Hadamard

# Largest magnitude of rows of zeros.
_SMALLEST = 1e-30
_LARGEST_CODE = 127


def quantize_dynamically(
    f: Function, isa: InstructionSet, row: Value, rows: Sequence[Value], matrix: Hadamard | None
) -> None:
    """Write scales and codes of some rows, in a function of `norm._codes_function`.

    `row` is the index of the first row, `rows` are where each row is, in float32, and their
    channels are multiplied by `matrix`.
    """
    multiplier, lanes = CODES.read(f.extra, "multiplier"), isa.lanes
    zero_point = 0 if isa.tiles.is_signed else 128
    if matrix is None:
        floats = vector(F32, lanes)
        largest = [f.variable(f.constant(floats, 0.0)) for _ in rows]
        with f.loop(0, f.channels, lanes) as channel:
            factor = f.load(floats, multiplier + channel * 4)
            for x, most in zip(rows, largest, strict=True):
                _include(most, f.load(floats, x + channel * 4) * factor)
        _quantize(f, row, rows, largest, multiplier, zero_point)
        return
    floats = vector(F32, max(lanes, matrix.block))
    largest = [f.variable(f.constant(floats, 0.0)) for _ in rows]
    spread = [f.spread + f.channels * (4 * each) for each in range(len(rows))]
    # Members of a group lie this far apart.
    step = CODES.read(f.extra, "step")
    end = f.channels * 4 if matrix.members == 1 else step
    with f.loop(0, end, 4 * floats.lanes) as place:
        places = [place + step * each for each in range(matrix.members)]
        factors = [f.load(floats, multiplier + each) for each in places]
        for x, out, most in zip(rows, spread, largest, strict=True):
            values = [
                _spread_lanes(f, f.load(floats, x + each) * factor, matrix.block)
                for each, factor in zip(places, factors, strict=True)
            ]
            for each, value in zip(places, _spread_members(values), strict=True):
                _include(most, value)
                f.store(value, out + each)
    _quantize(f, row, spread, largest, None, zero_point)


def _include(largest: Variable, value: Value) -> None:
    magnitude = value.function.intrinsic(f"llvm.fabs.{value.type.suffix}", value.type, value)
    largest.set(magnitude.maximum(largest.get()))


def _spread_lanes(f: Function, x: Value, block: int) -> Value:
    """Return a vector with each block of lanes multiplied by the matrix."""
    lanes, distance = x.type.lanes, 1
    while distance < block:
        signs = f.constant(x.type, [-1.0 if each & distance else 1.0 for each in range(lanes)])
        x = f.fma(x, signs, x.shuffle([each ^ distance for each in range(lanes)]))
        distance *= 2
    return x


def _spread_members(values: list[Value]) -> list[Value]:
    """Return the vectors of all members of a group, multiplied by the matrix."""
    distance = 1
    while distance < len(values):
        pairs = [(values[each & ~distance], values[each | distance]) for each in range(len(values))]
        values = [
            first - second if each & distance else first + second
            for each, (first, second) in enumerate(pairs)
        ]
        distance *= 2
    return values


def _quantize(
    f: Function,
    row: Value,
    rows: Sequence[Value],
    largest: Sequence[Variable],
    multiplier: Value | None,
    zero_point: int,
) -> None:
    """Write scales and codes of rows whose largest magnitudes are known."""
    floats: Type = largest[0].get().type
    inverses = []
    for each, most in enumerate(largest):
        amax = f.maximum_of(most.get()).maximum(_SMALLEST)
        f.store(amax * (1 / _LARGEST_CODE), f.row_scales + (row + each) * ROW_SCALE)
        inverses.append(f.splat(_LARGEST_CODE / amax, floats.lanes))
    places = [f.out + (row + each) * f.out_stride for each in range(len(rows))]
    zero = f.constant(floats, ROUNDING + zero_point)
    with f.loop(0, f.channels, floats.lanes) as channel:
        factor = None if multiplier is None else f.load(floats, multiplier + channel * 4)
        for x, place, inverse in zip(rows, places, inverses, strict=True):
            scale = inverse if factor is None else factor * inverse
            # No code is outside of the zero point +- 127, so that the lowest 8 bits are the code.
            codes = f.fma(f.load(floats, x + channel * 4), scale, zero)
            f.store_bytes(codes.bits(vector(I32, floats.lanes)), place + channel)
