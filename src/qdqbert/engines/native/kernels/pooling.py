"""One row for each text: the mean, the largest values, or the sum over the root of the length."""

from __future__ import annotations

from collections.abc import Callable

from qdqbert.engines.native.ir import F32, I64, Function, Module, Value, vector
from qdqbert.engines.native.memory import LINE

_FLOATS = vector(F32, LINE // 4)
# Rows are added in pairs, as NumPy does: 8 sums of up to 128 rows, and sums of such sums.
_SUMS, _BLOCK = 8, 128

Divisor = Callable[[Function, Value], Value]

_DIVISORS: dict[str, Divisor] = {
    "mean": lambda f, length: length,
    "mean_sqrt_len_tokens": lambda f, length: f.intrinsic("llvm.sqrt.f32", F32, length),
}
POOLINGS = ("max", *_DIVISORS)
"""Names of the poolings that have a kernel, `pool_max` and its like."""


def emit_pooling(module: Module) -> None:
    """Write `pool_max` and its like.

    Their arguments are the first row of float32, the bytes from one row to the next, also of the
    result, the index of the first row of each text and the end, int64, the number of texts, and the
    first row of the result. Rows have a multiple of 16 channels.
    """
    _emit_add_pairs(module)
    for name in POOLINGS:
        with (
            module.function(f"pool_{name}", "x*, stride, starts*, texts, out*") as f,
            f.loop(0, f.texts) as text,
        ):
            first, end = (f.load(I64, f.starts + text * 8 + each) for each in (0, 8))
            with f.loop(0, f.stride, LINE) as channel:
                x, out = f.x + first * f.stride + channel, f.out + text * f.stride + channel
                _pool(f, name, x, end - first, out)


def _pool(f: Function, name: str, x: Value, rows: Value, out: Value) -> None:
    """Write a line of the result from a line of the first row."""
    if name == "max":
        largest = f.variable(f.load(_FLOATS, x))
        with f.loop(1, rows) as row:
            largest.set(f.load(_FLOATS, x + row * f.stride).maximum(largest.get()))
        f.store(largest.get(), out)
        return
    f.store(f.load(_FLOATS, x), out)
    with f.when(rows > 1):
        rest = f.allocate(_FLOATS)
        f.call("add_pairs", x + f.stride, f.stride, rows - 1, rest)
        f.store(f.load(_FLOATS, out) + f.load(_FLOATS, rest), out)
    divisor = f.splat(_DIVISORS[name](f, rows.cast("sitofp", F32)), _FLOATS.lanes)
    f.store(f.load(_FLOATS, out) / divisor, out)


def _emit_add_pairs(module: Module) -> None:
    """Write `add_pairs`, which adds a line of some rows.

    Its arguments are the line of the first row, the bytes from one row to the next, the number of
    rows, and where the sum goes.
    """
    with module.function("add_pairs", "x*, stride, rows, out*") as f:
        is_long = f.rows > _BLOCK
        with f.when(is_long):
            half = f.rows // (2 * _SUMS) * _SUMS
            one, other = f.allocate(_FLOATS), f.allocate(_FLOATS)
            f.call(f, f.x, f.stride, half, one)
            f.call(f, f.x + half * f.stride, f.stride, f.rows - half, other)
            f.store(f.load(_FLOATS, one) + f.load(_FLOATS, other), f.out)
        is_short = f.rows < _SUMS
        with f.when(is_short):
            f.store(f.load(_FLOATS, f.x), f.out)
            _add_rest(f, f.constant(I64, 1))
        with f.when((is_long | is_short) ^ 1):
            places = [f.x + f.stride * each for each in range(_SUMS)]
            totals = [f.variable(f.load(_FLOATS, place)) for place in places]
            whole = f.rows - f.rows % _SUMS
            with f.loop(_SUMS, whole, _SUMS) as row:
                for place, total in zip(places, totals, strict=True):
                    total.set(total.get() + f.load(_FLOATS, place + row * f.stride))
            sums = [total.get() for total in totals]
            while len(sums) > 1:
                sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
            f.store(sums[0], f.out)
            _add_rest(f, whole)


def _add_rest(f: Function, first: Value) -> None:
    """Add the rows from one on to the sum in order."""
    with f.loop(first, f.rows) as row:
        f.store(f.load(_FLOATS, f.out) + f.load(_FLOATS, f.x + row * f.stride), f.out)
