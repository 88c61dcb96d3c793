"""Attention of one head within one text, in int8.

Queries, keys and values have one scale per token and head. A score is

    score[i, j] = (codes[i] - 128) @ keys[j] * query_scale[i] * key_scale[j] * score_scale

and the scale of a value moves into its probability, so that sums over tokens stay integers:

    weight[i, j] = 2 ** (score[i, j] + log2(value_scale[j]) - the largest of these)
    code[i, j]   = rint(65535 weight[i, j])
    context[i]   = sum(code[i, j] values[j]) / sum(65535 weight[i, j] / value_scale[j])

The denominator has the weights before they are rounded: a token with small values and a high
probability has a small weight, whose rounding error would be multiplied by 1 / value_scale. With 8
bits, the many small weights of a token would be lost; the two bytes of a code are multiplied one
after another. `score_scale` includes log2(e).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.functions import ROUNDING, exp2, log2, unsigned_codes
from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import (
    F32,
    I8,
    I32,
    I64,
    PTR,
    Function,
    Module,
    Value,
    Variable,
    vector,
)
from qdqbert.engines.native.kernels.dot import PANEL, add_products, exact_name
from qdqbert.engines.native.kernels.linear import in_blocks
from qdqbert.engines.native.records import CODES, JOB, LAYER, MODEL, THREAD

# Smaller than any score: the code of 2 to this power is 0.
_MASKED = -1e30
# Code of the largest weight of a row.
_TOP = 65535
# Panels of keys that are computed together; see `linear._emit_finish`.
_KEYS = (4, 2, 1)
# Scales of rows of zeros.
_SMALLEST = 1e-30


def token_codes(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return signed codes and scales of rows, one scale for each row."""
    amax = np.maximum(np.abs(x).max(axis=1), np.float32(_SMALLEST))
    return np.rint(x * (127 / amax)[:, None]).astype(np.int8), (amax / 127).astype(np.float32)


def attention(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    scale: float,
    *,
    bias: NDArray[np.float32] | None = None,
    causal: bool = False,
) -> NDArray[np.float64]:
    """Compute the context of one head: query, key and value `(tokens, head size)`."""
    (q, q_scale), (k, k_scale), (v, v_scale) = map(token_codes, (query, key, value))
    scores = q.astype(np.int64) @ k.T.astype(np.int64) * np.outer(q_scale, k_scale) * scale
    if bias is not None:
        scores = scores + bias
    scores = scores * math.log2(math.e) + np.log2(v_scale.astype(np.float64))
    if causal:
        scores = np.where(np.tri(len(query), dtype=bool), scores, -np.inf)
    weights = _TOP * 2.0 ** (scores - scores.max(axis=1, keepdims=True))
    return np.asarray((np.rint(weights) @ v) / (weights / v_scale).sum(axis=1, keepdims=True))


def emit_attention(module: Module, isa: InstructionSet, *, dynamic: bool = False) -> None:
    """Write `quantize_heads` and `attention`.

    Args:
        module: The module.
        isa: The instruction set.
        dynamic: Whether contexts are float32, as codes of a row need all heads.
    """
    _emit_quantize_heads(module, isa.lanes)
    _emit_pack(module, isa)
    _emit_softmax(module, isa)
    _emit_context(module, isa, dynamic=dynamic)
    with module.function("attention", model=PTR, layer=PTR, job=PTR, thread=PTR, item=I64) as f:
        _attention(f, isa, element=4 if dynamic else 1)


def _emit_quantize_heads(module: Module, lanes: int) -> None:
    """Write `quantize_heads`: signed or unsigned codes of rows, with a scale per row and head.

    Its arguments are the first row of float32 and the bytes from one row to the next, the number
    of rows, the number of heads and channels of each, the first row of codes and the bytes from one
    row to the next, the first scale and the bytes from the scales of one head to the next, and
    the code of zero.
    """
    floats = vector(F32, lanes)
    with module.function(
        "quantize_heads",
        x=PTR,
        stride=I64,
        rows=I64,
        heads=I64,
        size=I64,
        out=PTR,
        out_stride=I64,
        scales=PTR,
        scale_stride=I64,
        zero=I64,
    ) as f:
        shift = f.splat(f.zero.cast("sitofp", F32) + ROUNDING, lanes)
        with f.loop(0, f.rows) as row, f.loop(0, f.heads) as head:
            x = f.x + (row * f.stride + head * f.size * 4)
            out = f.out + (row * f.out_stride + head * f.size)
            largest = f.variable(f.constant(floats, _SMALLEST))
            with f.loop(0, f.size, lanes) as channel:
                values = f.load(floats, x + channel * 4)
                magnitude = f.intrinsic(f"llvm.fabs.{floats.suffix}", floats, values)
                largest.set(magnitude.maximum(largest.get()))
            amax = f.maximum_of(largest.get())
            factor = f.splat(127.0 / amax, lanes)
            with f.loop(0, f.size, lanes) as channel:
                # The magnitude is at most 127, so there is nothing to clip.
                values = f.fma(f.load(floats, x + channel * 4), factor, shift)
                f.store_bytes(values.bits(vector(I32, lanes)), out + channel)
            f.store(amax * (1 / 127), f.scales + (head * f.scale_stride + row * 4))


def _emit_pack(module: Module, isa: InstructionSet) -> None:
    """Write `pack_keys`, `pack_values` and `token_factors`, which prepare the keys of a text.

    All fill the padding up to a multiple of 16 tokens.
    """
    with module.function(
        "pack_keys", source=PTR, stride=I64, length=I64, padded=I64, size=I64, out=PTR, start=PTR
    ) as f:
        steps = f.size // 4
        with f.loop(0, f.padded) as token:
            is_real = token < f.length
            source = f.source + is_real.select(token, 0) * f.stride
            panel = f.out + (token // PANEL * PANEL * f.size + token % PANEL * 4)
            with f.loop(0, steps) as step:
                four = is_real.select(f.load(I32, source + step * 4), 0)
                f.store(four, panel + step * (4 * PANEL))
        with f.loop(0, f.padded, isa.lanes) as token:
            panel = f.out + (token // PANEL * PANEL * f.size + token % PANEL * 4)
            total = f.variable(f.constant(vector(I32, isa.lanes), 0))
            with f.loop(0, steps) as step:
                keys = f.load(vector(I8, 4 * isa.lanes), panel + step * (4 * PANEL))
                ones = f.constant(I32, 0x01010101)
                total.set(add_products(f, isa, total.get(), ones, keys))
            f.store(total.get() * -128, f.start + token * 4)
    with module.function(
        "pack_values", source=PTR, stride=I64, length=I64, padded=I64, size=I64, out=PTR
    ) as f:
        bytes_, lanes = vector(I8, PANEL), vector(I32, PANEL)
        with f.loop(0, f.padded, 4) as token, f.loop(0, f.size, PANEL) as channel:
            four = f.constant(lanes, 0)
            for each in range(4):
                own = token + each
                is_real = own < f.length
                place = f.source + (is_real.select(own, 0) * f.stride + channel)
                values = is_real.select(f.load(bytes_, place), f.constant(bytes_, 0)).cast(
                    "zext", lanes
                )
                four = four | (values << 8 * each)
            f.store(four, f.out + (channel * f.padded + token * PANEL))
    _emit_token_factors(module, isa.lanes)


def _emit_token_factors(module: Module, lanes: int) -> None:
    floats = vector(F32, lanes)
    with module.function(
        "token_factors",
        value_scale=PTR,
        length=I64,
        padded=I64,
        value_log=PTR,
        value_inverse=PTR,
    ) as f:
        index = f.constant(vector(I64, lanes), range(lanes))
        with f.loop(0, f.padded, lanes) as token:
            is_real = index < f.splat(f.length - token, lanes)
            scale = f.load(floats, f.value_scale + token * 4).maximum(_SMALLEST)
            f.store(is_real.select(log2(f, scale), _MASKED), f.value_log + token * 4)
            f.store(is_real.select(1.0 / scale, 0.0), f.value_inverse + token * 4)


@dataclasses.dataclass(frozen=True)
class _Item:
    """A head of a text, as values of the kernel.

    Attributes:
        head: Number of the head.
        size: Its channels.
        width: Bytes from a row of queries, keys or values to the next.
        length: Tokens of the text.
        padded: The same, rounded up to whole panels.
        start: Where its first row is in queries, keys, values and contexts.
        scales: Where its first scale is in the scales, in bytes.
    """

    head: Value
    size: Value
    width: Value
    length: Value
    padded: Value
    start: Value
    scales: Value


def _attention(f: Function, isa: InstructionSet, *, element: int) -> None:
    heads, size, width = (MODEL.read(f, f.model, name) for name in ("heads", "head_size", "width"))
    text, head = f.item // heads, f.item % heads
    starts = JOB.read(f, f.job, "starts") + text * 8
    first = f.load(I64, starts)
    length = f.load(I64, starts + 8) - first
    item = _Item(
        head=head,
        size=size,
        width=width,
        length=length,
        padded=(length + (PANEL - 1)) // PANEL * PANEL,
        start=first * width + head * size,
        scales=head * JOB.read(f, f.job, "scale_stride") + first * 4,
    )
    _prepare(f, item)
    columns = max(isa.lanes * max(isa.vectors), PANEL)
    zeros = f.allocate(I32, columns)
    with f.loop(0, columns) as each:
        f.store(f.constant(I32, 0), zeros + each * 4)

    def rows(row: Value, height: int) -> None:
        _weigh(f, isa, item, row, height)
        _sum_values(f, isa, item, row, height, zeros, element)

    in_blocks(f, length, isa.rows, rows)


def _prepare(f: Function, item: _Item) -> None:
    """Write what all rows of queries need: packed keys and values, and their scales."""
    keys, values = (JOB.read(f, f.job, name) + item.start for name in ("keys", "values"))
    size = (item.width, item.length, item.padded, item.size)
    f.call("pack_keys", keys, *size, *_buffers(f, "keys", "start"))
    f.call("pack_values", values, *size, *_buffers(f, "values"))
    scales = JOB.read(f, f.job, "value_scale") + item.scales
    logs = _buffers(f, "value_log", "value_inverse")
    f.call("token_factors", scales, item.length, item.padded, *logs)


def _weigh(f: Function, isa: InstructionSet, item: _Item, row: Value, height: int) -> None:
    """Write the weights of all tokens for some rows of queries."""
    queries = JOB.read(f, f.job, "queries") + (item.start + row * item.width)
    keys, sums, start = _buffers(f, "keys", "sums", "start")
    _tiles(f, isa, height, item.padded, queries, item.width, keys, item.size, sums, start)
    query_scale, key_scale = (
        JOB.read(f, f.job, name) + item.scales for name in ("query_scale", "key_scale")
    )
    with f.loop(0, height) as each:
        scale = query_scale + (row + each) * 4
        query = (item.head, row + each, each, item.padded, scale, key_scale)
        f.call("softmax", f.model, f.layer, f.thread, *query)


def _sum_values(
    f: Function,
    isa: InstructionSet,
    item: _Item,
    row: Value,
    height: int,
    zeros: Value,
    element: int,
) -> None:
    """Write the contexts of some rows of queries: weighted sums of values."""
    probabilities, values, sums = _buffers(f, "probabilities", "values", "sums_of_values")
    depth = item.padded
    for byte in range(2):
        codes = probabilities + depth * (byte * isa.rows[0])
        own = sums + item.size * (4 * byte * isa.rows[0])
        _tiles(f, isa, height, item.size, codes, depth, values, depth, own, zeros, same_start=True)
    out = JOB.read(f, f.job, "context") + item.start * element
    with f.loop(0, height) as each:
        place = out + (row + each) * item.width * element
        channel = item.head * item.size
        f.call("context", f.layer, f.thread, channel, each, item.size, place)


def _buffers(f: Function, *names: str) -> list[Value]:
    return [THREAD.read(f, f.thread, name) for name in names]


def _tiles(
    f: Function,
    isa: InstructionSet,
    height: int,
    columns: Value,
    codes: Value,
    code_stride: Value,
    panels: Value,
    depth: Value,
    sums: Value,
    start: Value,
    *,
    same_start: bool = False,
) -> None:
    """Write a row of tiles, `height` rows high: `sums = start + codes @ panels`."""
    widths = tuple(vectors * isa.lanes // PANEL for vectors in isa.vectors)

    def tile(panel: Value, width: int) -> None:
        f.call(
            exact_name(isa, height, width * PANEL // isa.lanes),
            codes,
            code_stride,
            panels + panel * depth * PANEL,
            depth * PANEL,
            sums + panel * (4 * PANEL),
            columns * 4,
            depth // 4,
            start if same_start else start + panel * (4 * PANEL),
        )

    in_blocks(f, columns // PANEL, widths, tile)


def _emit_softmax(module: Module, isa: InstructionSet) -> None:
    """Write `softmax`: a row of sums to codes of weights and the inverse of the denominator."""
    lanes = isa.lanes
    with module.function(
        "softmax",
        model=PTR,
        layer=PTR,
        thread=PTR,
        head=I64,
        query=I64,
        row=I64,
        padded=I64,
        query_scale=PTR,
        key_scale=PTR,
    ) as f:
        floats = vector(F32, lanes)
        sums = THREAD.read(f, f.thread, "sums") + f.row * f.padded * 4
        largest = f.variable(f.constant(floats, _MASKED))
        _store_scores(f, sums, largest)
        bias = LAYER.read(f, f.layer, "position_bias")
        has_bias = f.emit(I64, f"ptrtoint ptr {bias.text} to i64").differs(0)
        is_causal = MODEL.read(f, f.model, "causal").differs(0)
        with f.when(has_bias | is_causal):
            with f.when(has_bias):
                _add_position_bias(f, lanes, sums, bias)
            with f.when(is_causal), f.loop(f.query + 1, f.padded) as key:
                f.store(f.constant(F32, _MASKED), sums + key * 4)
            largest.set(_MASKED)
            with f.loop(0, f.padded, lanes) as key:
                largest.set(f.load(floats, sums + key * 4).maximum(largest.get()))
        mass = f.variable(f.constant(floats, 0.0))
        _store_weights(f, isa.rows[0], sums, f.maximum_of(largest.get()), mass)
        place = THREAD.read(f, f.thread, "inverse") + f.row * 4
        f.store(1.0 / (f.sum_of(mass.get()) * float(_TOP)), place)


def _store_scores(f: Function, sums: Value, largest: Variable) -> None:
    """Replace the sums of a row with scores, and keep the largest of each lane."""
    scale = f.load(F32, f.query_scale) * MODEL.read(f, f.model, "score_scale")
    logs = THREAD.read(f, f.thread, "value_log")

    def block(panel: Value, width: int) -> None:
        floats, offset = vector(F32, PANEL * width), panel * (4 * PANEL)
        total = f.load(vector(I32, PANEL * width), sums + offset).cast("sitofp", floats)
        factor = f.load(floats, f.key_scale + offset) * f.splat(scale, floats.lanes)
        score = f.fma(total, factor, f.load(floats, logs + offset))
        f.store(score, sums + offset)
        for part in score.parts(floats.lanes // largest.type.lanes):
            largest.set(part.maximum(largest.get()))

    in_blocks(f, f.padded // PANEL, _KEYS, block)


def _store_weights(f: Function, rows: int, scores: Value, largest: Value, mass: Variable) -> None:
    """Store the codes of a row, and add what they contribute to the denominator.

    The lower bytes of all rows come after the higher bytes of `rows` rows.
    """
    high = THREAD.read(f, f.thread, "probabilities") + f.row * f.padded
    low = high + f.padded * rows
    inverses = THREAD.read(f, f.thread, "value_inverse")

    def block(panel: Value, width: int) -> None:
        floats, key = vector(F32, PANEL * width), panel * PANEL
        score = f.load(floats, scores + key * 4) - f.splat(largest, floats.lanes)
        weight = exp2(f, score, for_codes=True)
        rounded = f.fma(weight, float(_TOP), ROUNDING)
        code = rounded.bits(vector(I32, floats.lanes))
        f.store_bytes(code >> 8, high + key)
        f.store_bytes(code, low + key)
        weighted = weight * f.load(floats, inverses + key * 4)
        for part in weighted.parts(floats.lanes // mass.type.lanes):
            mass.set(mass.get() + part)

    in_blocks(f, f.padded // PANEL, _KEYS, block)


def _add_position_bias(f: Function, lanes: int, scores: Value, bias: Value) -> None:
    """Add the bias of `key - query`."""
    floats = vector(F32, lanes)
    limit = MODEL.read(f, f.model, "limit")
    row = bias + (f.head * (limit * 2 - 1) + limit - 1 - f.query) * 4
    with f.loop(0, f.padded, lanes) as key:
        place = scores + key * 4
        f.store(f.load(floats, place) + f.load(floats, row + key * 4), place)


def _emit_context(module: Module, isa: InstructionSet, *, dynamic: bool) -> None:
    """Write `context`: sums of values to codes of the next linear layer, or to float32."""
    lanes = isa.lanes
    floats, integers = vector(F32, lanes), vector(I32, lanes)
    with module.function(
        "context", layer=PTR, thread=PTR, channel=I64, row=I64, size=I64, out=PTR
    ) as f:
        high = THREAD.read(f, f.thread, "sums_of_values") + f.row * f.size * 4
        low = high + f.size * (4 * isa.rows[0])
        inverse = f.load(F32, THREAD.read(f, f.thread, "inverse") + f.row * 4)
        inverse = f.splat(inverse, lanes)
        codes = LAYER.read(f, f.layer, "context_codes")
        shift = f.splat(CODES.read(f, codes, "shift"), lanes)
        multiplier = CODES.read(f, codes, "multiplier") + f.channel * 4
        with f.loop(0, f.size, lanes) as channel:
            bytes_ = [
                f.load(integers, sums + channel * 4).cast("sitofp", floats) for sums in (high, low)
            ]
            total = f.fma(bytes_[0], 256.0, bytes_[1]) * inverse
            if dynamic:
                f.store(total, f.out + channel * 4)
            else:
                factor = f.load(floats, multiplier + channel * 4)
                f.store_bytes(unsigned_codes(f, total, factor, shift), f.out + channel)
