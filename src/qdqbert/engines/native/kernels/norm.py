"""LayerNorm, and the codes of a row."""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.functions import ROUNDING, unsigned_codes
from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import F32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.records import CODES, NORM, ROW_SCALE, THREAD

# Range of rows of zeros.
_SMALLEST = 1e-30


def emit_norms(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `layer_norm`, `quantize_rows`, and `quantize_normed` if layers normalize first."""
    _emit_layer_norm(module, isa.lanes)
    _emit_quantize_rows(module, isa.lanes, dynamic=features.dynamic)
    if features.norms_first:
        _emit_quantize_normed(module, isa.lanes)


def quantize_input(
    f: Function, features: Features, norm: Value, codes: Value, *rows: Value
) -> None:
    """Write the codes of a part's input states, in a function with `f.thread`.

    Args:
        f: The function.
        features: The parts of the model.
        norm: The `NORM` record of the part, if layers normalize first.
        codes: The `CODES` record.
        rows: The other arguments of `quantize_rows`.
    """
    if features.norms_first:
        f.call("quantize_normed", norm, codes, *rows, THREAD.read(f, f.thread, "normed"))
    else:
        f.call("quantize_rows", codes, *rows)


def _emit_layer_norm(module: Module, lanes: int) -> None:
    """Write `layer_norm`, which normalizes rows in place.

    Its arguments are a `NORM` record, the first row, the bytes from one row to the next, and the
    number of rows. Channels after the width are padding: they have to be zero, and stay zero,
    because their weight and bias are zero.
    """
    with (
        module.function("layer_norm", norm=PTR, x=PTR, stride=I64, rows=I64) as f,
        f.loop(0, f.rows) as row,
    ):
        x = f.x + row * f.stride
        _normalize(f, lanes, x, f.stride // 4, x)


def _emit_quantize_normed(module: Module, lanes: int) -> None:
    """Write `quantize_normed`: the codes of rows after a LayerNorm, which does not change the rows.

    Its arguments are a `NORM` record, or null to quantize the rows themselves, the arguments of
    `quantize_rows`, and a buffer for one row.
    """
    with module.function(
        "quantize_normed",
        norm=PTR,
        extra=PTR,
        x=PTR,
        stride=I64,
        channels=I64,
        rows=I64,
        out=PTR,
        out_stride=I64,
        row_scales=PTR,
        normed=PTR,
    ) as f:
        is_normed = f.emit(I64, f"ptrtoint ptr {f.norm.text} to i64").differs(0)
        with f.when(is_normed ^ 1):
            rows = (f.x, f.stride, f.channels, f.rows, f.out, f.out_stride, f.row_scales)
            f.call("quantize_rows", f.extra, *rows)
        with f.when(is_normed), f.loop(0, f.rows) as row:
            _normalize(f, lanes, f.x + row * f.stride, f.channels, f.normed)
            out, scale = f.out + row * f.out_stride, f.row_scales + row * ROW_SCALE
            f.call("quantize_rows", f.extra, f.normed, 0, f.channels, 1, out, f.out_stride, scale)


def _normalize(f: Function, lanes: int, x: Value, channels: Value, out: Value) -> None:
    """Write the LayerNorm of a row of that many channels with padding, by the record `f.norm`."""
    floats = vector(F32, lanes)
    weight, bias = (NORM.read(f, f.norm, name) for name in ("weight", "bias"))
    width = NORM.read(f, f.norm, "width")
    count = width.cast("sitofp", F32)
    whole = width - width % lanes
    index = f.constant(vector(I64, lanes), range(lanes))
    total = f.variable(f.constant(floats, 0.0))
    with f.loop(0, channels, lanes) as channel:
        total.set(total.get() + f.load(floats, x + channel * 4))
    mean = f.splat(f.sum_of(total.get()) / count * NORM.read(f, f.norm, "subtracts_mean"), lanes)
    total.set(0.0)
    with f.loop(0, whole, lanes) as channel:
        centered = f.load(floats, x + channel * 4) - mean
        total.set(f.fma(centered, centered, total.get()))
    with f.when(whole.differs(width)):
        centered = f.load(floats, x + whole * 4) - mean
        is_real = index < f.splat(width - whole, lanes)
        centered = is_real.select(centered, 0.0)
        total.set(f.fma(centered, centered, total.get()))
    variance = f.sum_of(total.get()) / count + NORM.read(f, f.norm, "epsilon")
    scale = f.splat(1.0 / f.intrinsic("llvm.sqrt.f32", F32, variance), lanes)
    with f.loop(0, channels, lanes) as channel:
        centered = (f.load(floats, x + channel * 4) - mean) * scale
        factor = f.load(floats, weight + channel * 4)
        f.store(f.fma(centered, factor, f.load(floats, bias + channel * 4)), out + channel * 4)


def _emit_quantize_rows(module: Module, lanes: int, *, dynamic: bool) -> None:
    """Write `quantize_rows`.

    Its arguments are a `CODES` record, the first row of float32, the bytes from one row to the
    next, the number of channels, the number of rows, the first row of codes and the bytes from one
    row to the next, and where the scales and zero points go if they are dynamic.
    """
    floats = vector(F32, lanes)
    with module.function(
        "quantize_rows",
        extra=PTR,
        x=PTR,
        stride=I64,
        channels=I64,
        rows=I64,
        out=PTR,
        out_stride=I64,
        row_scales=PTR,
    ) as f:
        shift = f.splat(CODES.read(f, f.extra, "shift"), lanes)
        multiplier = CODES.read(f, f.extra, "multiplier")
        with f.loop(0, f.rows) as row:
            x, out = f.x + row * f.stride, f.out + row * f.out_stride
            inverse = f.constant(floats, 1.0)
            if dynamic:
                place = f.row_scales + row * ROW_SCALE
                inverse, shift = _row_parameters(f, lanes, x, multiplier, place)
            with f.loop(0, f.channels, lanes) as channel:
                factor = f.load(floats, multiplier + channel * 4) * inverse
                codes = unsigned_codes(f, f.load(floats, x + channel * 4), factor, shift)
                f.store_bytes(codes, out + channel)


def _row_parameters(
    f: Function, lanes: int, x: Value, multiplier: Value, place: Value
) -> tuple[Value, Value]:
    """Write scale and zero point of a row to `place`.

    Returns:
        The inverse of the scale, and `ROUNDING + zero_point`, in all lanes.
    """
    floats = vector(F32, lanes)
    # Zero is always in the range. The largest of the negated values is minus the least one.
    ends = [f.variable(f.constant(floats, 0.0)) for _ in range(2)]
    with f.loop(0, f.channels, lanes) as channel:
        found = f.load(floats, x + channel * 4) * f.load(floats, multiplier + channel * 4)
        for end, values in zip(ends, (found, found * -1.0), strict=True):
            end.set(values.maximum(end.get()))
    high, minus_low = (f.maximum_of(end.get()) for end in ends)
    covered = (high + minus_low).maximum(_SMALLEST)
    inverse = 255.0 / covered
    shift = minus_low * inverse + ROUNDING
    f.store(covered * (1 / 255), place)
    f.store((shift - ROUNDING) * (1 / 128) - 1.0, place + 4)
    return f.splat(inverse, lanes), f.splat(shift, lanes)
