"""The kernels, in Triton: one source for all GPUs of capability 8.0 and more.

A row is a token, and rows of texts follow each other without padding. Grids are for the capacity of
a captured graph; `count` points to the number of tokens there are. Nothing that a row gives depends
on another row, but for the tokens of its own text in `attention` and `pool`: integer sums are
exact, and all other sums have an order that depends on the text alone.

Sizes of tensors are powers of 2, so that channels beyond the last one are masked. A kernel is
compiled without the parts whose tensors are `None`.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Adding and subtracting this number rounds a float32 below 2^22 to an integer, ties to even.
_ROUNDING = tl.constexpr(12582912.0)
_LARGEST_CODE = tl.constexpr(127.0)
# Largest magnitude of rows of zeros, as on the native engine.
_SMALLEST = tl.constexpr(1e-30)
_LARGEST_HALF = tl.constexpr(65504.0)
# Score of keys that no query has met, which is below all others, and finite.
_LOWEST = tl.constexpr(-1e30)
# Rows of tiles that are computed together, as they read the same weights.
_TOGETHER = tl.constexpr(8)


@triton.jit
def activate(x, name: tl.constexpr):
    """Return an activation function of float32."""
    # exp stays finite.
    if name == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif name == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * (1.0 - 1.0 / (tl.exp(tl.minimum(2.0 * inner, 80.0)) + 1.0))
    elif name == "relu":
        x = tl.maximum(x, 0.0)
    elif name == "silu":
        x = x / (1.0 + tl.exp(tl.minimum(-x, 80.0)))
    elif name == "tanh":
        x = 1.0 - 2.0 / (tl.exp(tl.minimum(2.0 * x, 80.0)) + 1.0)
    return x


@triton.jit
def as_half(x):
    """Return float32 as float16, which takes its largest value instead of infinity."""
    return tl.minimum(tl.maximum(x, -_LARGEST_HALF), _LARGEST_HALF).to(tl.float16)


@triton.jit
def store(place, x, mask):
    """Write float32 as the dtype of a tensor."""
    if place.dtype.element_ty == tl.float16:
        x = as_half(x)
    tl.store(place, x.to(place.dtype.element_ty), mask=mask)


@triton.jit
def normalized(x, place, exists, norm, stride, width, subtracts_mean: tl.constexpr):
    """Return the LayerNorm or RMSNorm of a row whose missing channels are 0.

    `norm` has three rows of `stride` values: weights, biases, and the number that is added to the
    variance.
    """
    if subtracts_mean:
        x = tl.where(exists, x - tl.sum(tl.sum(x, 1), 0) / width, 0.0)
    variance = tl.sum(tl.sum(x * x, 1), 0) / width
    x = x * (1.0 / tl.sqrt(variance + tl.load(norm + 2 * stride)))
    by = tl.load(norm + place, mask=exists, other=0.0)
    return x * by + tl.load(norm + stride + place, mask=exists, other=0.0)


@triton.jit
def embed(
    count,
    ids,
    positions,
    types,
    factors,
    words,
    word_scale,
    position_rows,
    type_rows,
    norm,
    states,
    width,
    stride,
    subtracts_mean: tl.constexpr,
    size: tl.constexpr,
):
    """Write the sum of the rows of the tables, normalized if the model does."""
    token = tl.program_id(0)
    place = tl.arange(0, size)[None, :]
    exists = place < tl.where(token < tl.load(count), width, 0)
    word = tl.load(ids + token).to(tl.int64)
    x = tl.load(words + word * stride + place, mask=exists, other=0).to(tl.float32)
    if word_scale is not None:
        x *= tl.load(word_scale + place, mask=exists, other=0.0)
    if factors is not None:
        x *= tl.load(factors + token)
    if position_rows is not None:
        row = tl.load(positions + token).to(tl.int64)
        x += tl.load(position_rows + row * stride + place, mask=exists, other=0.0)
    row = tl.load(types + token).to(tl.int64)
    x += tl.load(type_rows + row * stride + place, mask=exists, other=0.0)
    if norm is not None:
        x = normalized(x, place, exists, norm, stride, width, subtracts_mean)
    store(states + token.to(tl.int64) * stride + place, x, exists)


@triton.jit
def add_norm(
    count,
    states,
    local,
    local_norm,
    norm,
    again,
    sums,
    multiplier,
    matrix,
    codes,
    scales,
    width,
    stride,
    local_subtracts_mean: tl.constexpr,
    subtracts_mean: tl.constexpr,
    keeps_sum: tl.constexpr,
    members: tl.constexpr,
    block: tl.constexpr,
    repeats: tl.constexpr,
    groups: tl.constexpr,
):
    """Add rows to states, normalize them, and write sums and codes of the next linear layer.

    With `local_norm`, the rows are normalized by themselves before they are added. With `again`,
    states are added once more to what `norm` gives, and normalized. With `keeps_sum`, sums are not
    normalized, and only codes are.

    Codes are symmetric, with a scale of each row, or float16. Before they are made, `matrix`
    multiplies the groups of a row's channels; see `quantization.hadamard.Hadamard`. It has ones and
    minus ones, and zeros between its blocks.
    """
    token = tl.program_id(0)
    order: tl.constexpr = members * block
    size: tl.constexpr = repeats * order
    # The channels of a row, `(groups, size)`.
    side = tl.arange(0, size)
    at = side[None, :]
    group = tl.arange(0, groups)[:, None] * repeats + at // order
    place = at % order // block * (width // members) + group * block + at % block
    exists = group < tl.where(token < tl.load(count), width // order, 0)
    row = token.to(tl.int64) * stride
    before = tl.load(states + row + place, mask=exists, other=0.0).to(tl.float32)
    total = before
    if local is not None:
        added = tl.load(local + row + place, mask=exists, other=0.0).to(tl.float32)
        if local_norm is not None:
            added = normalized(
                added, place, exists, local_norm, stride, width, local_subtracts_mean
            )
        total += added
    x = total
    if norm is not None:
        x = normalized(x, place, exists, norm, stride, width, subtracts_mean)
    if again is not None:
        x = normalized(x + before, place, exists, again, stride, width, subtracts_mean)
    if sums is not None:
        store(sums + row + place, total if keeps_sum else x, exists)
    if codes is not None:
        if codes.dtype.element_ty == tl.int8:
            x = x * tl.load(multiplier + place, mask=exists, other=0.0)
            if matrix is not None:
                hadamard = tl.load(matrix + side[:, None] * size + side[None, :])
                x = tl.dot(as_half(x), hadamard, out_dtype=tl.float32)
            amax = tl.maximum(tl.max(tl.max(tl.abs(tl.where(exists, x, 0.0)), 1), 0), _SMALLEST)
            tl.store(scales + token, amax * (1.0 / _LARGEST_CODE))
            x = x * (_LARGEST_CODE / amax)
            tl.store(codes + row + place, ((x + _ROUNDING) - _ROUNDING).to(tl.int8), mask=exists)
        else:
            store(codes + row + place, x, exists)


@triton.jit
def product(
    rows, weights, factors, bias, scale, columns, exists, depth, end, tile, step: tl.constexpr
):
    """Return a tile of rows times some columns of weights, plus their bias, as float32.

    `tile` has zeros. Sums of codes are multiplied by the rows' `scale` and the columns' `factors`.
    """
    at = tl.arange(0, step)
    row_places = rows + at[None, :]
    weight_places = weights + columns.to(tl.int64)[None, :] * depth + at[:, None]
    for first in range(0, end, step):
        is_inside = at < depth - first
        a = tl.load(row_places, mask=exists & is_inside[None, :], other=0)
        w = tl.load(weight_places, mask=is_inside[:, None], other=0)
        tile = tl.dot(a, w, tile, input_precision="ieee", out_dtype=tile.dtype)
        row_places += step
        weight_places += step
    x = tile.to(tl.float32)
    if scale is not None:
        x = x * tl.load(scale, mask=exists, other=0.0) * tl.load(factors + columns)[None, :]
    return x + tl.load(bias + columns)[None, :]


@triton.jit
def linear(
    count,
    rows,
    scales,
    weights,
    factors,
    bias,
    out,
    columns,
    depth,
    out_stride,
    activation: tl.constexpr,
    gate: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    step: tl.constexpr,
):
    """Write `activation(rows @ weights.T + bias)`, of int8 codes, float16 or float32.

    With a gate, the columns of the gate follow those of the layer, and the activation is multiplied
    by them.
    """
    tokens = tl.load(count)
    index = tl.program_id(0)
    across = tl.cdiv(columns, tile_columns)
    down = tl.num_programs(0) // across
    first = index // (_TOGETHER * across) * _TOGETHER
    height = tl.minimum(down - first, _TOGETHER)
    index = index % (_TOGETHER * across)
    row = (first + index % height) * tile_rows + tl.arange(0, tile_rows)
    column = index // height * tile_columns + tl.arange(0, tile_columns)
    exists = (row < tokens)[:, None]
    # A tile without tokens takes no step.
    end = tl.where((first + index % height) * tile_rows < tokens, depth, 0)
    # Columns beyond the last one are computed as the last one, and not written.
    inside = tl.minimum(column, columns - 1)
    place = rows + row.to(tl.int64)[:, None] * depth
    scale = None if scales is None else scales + row[:, None]
    kind: tl.constexpr = tl.float32 if scales is None else tl.int32
    tile = tl.zeros((tile_rows, tile_columns), dtype=kind)
    x = product(place, weights, factors, bias, scale, inside, exists, depth, end, tile, step)
    x = activate(x, activation)
    if gate:
        other = inside + columns
        x *= product(place, weights, factors, bias, scale, other, exists, depth, end, tile, step)
    target = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    store(target, x, exists & (column < columns)[None, :])


@triton.jit
def rotate(
    count,
    places,
    table,
    norms,
    states,
    width,
    heads,
    norms_each_head: tl.constexpr,
    half: tl.constexpr,
    half_size: tl.constexpr,
    head_count: tl.constexpr,
):
    """Normalize queries and keys by `norms`, and rotate the halves of each head by `table`.

    They are normalized over the channels of all heads, or over those of each head by one weight.
    Each norm has three rows; see `normalized`.
    """
    token = tl.program_id(0)
    is_key = tl.program_id(1)
    head, channel = tl.arange(0, head_count)[:, None], tl.arange(0, half_size)[None, :]
    exists = (head < tl.where(token < tl.load(count), heads, 0)) & (channel < half)
    inside = head * (2 * half) + channel
    place = states + token.to(tl.int64) * (3 * width) + is_key * width + inside
    a = tl.load(place, mask=exists, other=0.0).to(tl.float32)
    b = tl.load(place + half, mask=exists, other=0.0).to(tl.float32)
    if norms is not None:
        total = tl.sum(a * a + b * b, 1)
        if norms_each_head:
            normed, own, total = 2 * half, channel, total[:, None]
        else:
            normed, own, total = heads * 2 * half, inside, tl.sum(total, 0)
        norm = norms + is_key * (3 * normed)
        by = 1.0 / tl.sqrt(total / normed + tl.load(norm + 2 * normed))
        weight, shift = norm + own, norm + normed + own
        a = a * by * tl.load(weight, mask=exists, other=0.0)
        b = b * by * tl.load(weight + half, mask=exists, other=0.0)
        a += tl.load(shift, mask=exists, other=0.0)
        b += tl.load(shift + half, mask=exists, other=0.0)
    if table is not None:
        row = table + tl.load(places + token).to(tl.int64) * (2 * half) + channel
        cos = tl.load(row, mask=exists, other=0.0)
        sin = tl.load(row + half, mask=exists, other=0.0)
        a, b = a * cos - b * sin, b * cos + a * sin
    store(place, a, exists)
    store(place + half, b, exists)


@triton.jit
def attention(
    states,
    blocks,
    bias,
    out,
    scale,
    width,
    limit,
    window,
    size: tl.constexpr,
    wide: tl.constexpr,
    causal: tl.constexpr,
    queries: tl.constexpr,
    keys: tl.constexpr,
):
    """Write the contexts of a block of queries of one text and head.

    Scores are logarithms to base 2, `scale` and `bias` included. `blocks` has four numbers of each:
    the first token of its text, the end of the text, the end of its keys, which is before tokens
    that expand it, and the block's first query in the text. They are zeros for no block. Blocks of
    keys start at the text's first token, whatever texts are around it.
    """
    head = tl.program_id(1)
    block = blocks + 4 * tl.program_id(0)
    start, end, last = tl.load(block), tl.load(block + 1), tl.load(block + 2)
    first = tl.load(block + 3)
    i = first + tl.arange(0, queries)
    channel = tl.arange(0, wide)
    is_channel = channel < size
    exists = start + i < end
    rows = states + (start + i).to(tl.int64)[:, None] * (3 * width)
    inside = head * size + channel
    q = tl.load(rows + inside[None, :], mask=exists[:, None] & is_channel[None, :], other=0.0)
    most = tl.full((queries,), _LOWEST, tl.float32)
    total = tl.zeros((queries,), tl.float32)
    found = tl.zeros((queries, wide), tl.float32)
    begin, stop = 0, last - start
    if causal:
        stop = tl.minimum(stop, first + queries)
    if window is not None:
        stop = tl.minimum(stop, first + queries + window)
        begin = tl.maximum(first - window, 0) // keys * keys
    for near in range(begin, stop, keys):
        j = near + tl.arange(0, keys)
        is_key = start + j < last
        columns = states + (start + j).to(tl.int64) * (3 * width)
        k = tl.load(
            columns[None, :] + (width + inside)[:, None],
            mask=is_key[None, :] & is_channel[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, out_dtype=tl.float32) * scale
        distance = j[None, :] - i[:, None]
        if bias is not None:
            at = tl.minimum(tl.maximum(distance + limit - 1, 0), 2 * limit - 2)
            scores += tl.load(bias + head * (2 * limit - 1) + at)
        is_seen = is_key[None, :]
        if causal:
            is_seen = is_seen & (distance <= 0)
        if window is not None:
            is_seen = is_seen & (distance <= window) & (distance >= -window)
        scores = tl.where(is_seen, scores, -float("inf"))
        largest = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - largest[:, None])
        shrink = tl.exp2(most - largest)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(
            columns[:, None] + (2 * width + inside)[None, :],
            mask=is_key[:, None] & is_channel[None, :],
            other=0.0,
        )
        found = found * shrink[:, None] + tl.dot(p.to(v.dtype), v, out_dtype=tl.float32)
        most = largest
    found = found / tl.maximum(total, _SMALLEST)[:, None]
    place = out + (start + i).to(tl.int64)[:, None] * width + inside[None, :]
    store(place, found, exists[:, None] & is_channel[None, :])


@triton.jit
def pool(states, starts, out, width, stride, out_stride, pooling: tl.constexpr, size: tl.constexpr):
    """Write the first or last row of a text, or the maximum, sum or mean of all in their order."""
    text, channel = tl.program_id(0), tl.program_id(1) * size + tl.arange(0, size)
    exists = channel < width
    start, end = tl.load(starts + text), tl.load(starts + text + 1)
    if pooling == "first":
        end = start + 1
    elif pooling == "last":
        start = end - 1
    length = (end - start).to(tl.float32)
    total = tl.full((size,), -float("inf") if pooling == "max" else 0.0, tl.float32)
    place, number = states + start.to(tl.int64) * stride + channel, 0.0
    for _ in range(start, end):
        x = tl.load(place, mask=exists, other=0.0)
        number += 1.0
        if pooling == "max":
            total = tl.maximum(total, x)
        elif pooling == "weightedmean":
            # The mean of rows times 2 i / (n + 1), as the sum of i is n (n + 1) / 2.
            total += x * (2.0 * number / (length + 1.0))
        else:
            total += x
        place += stride
    if pooling == "mean" or pooling == "weightedmean":
        total = total / length
    elif pooling == "mean_sqrt_len_tokens":
        total = total / tl.sqrt(length)
    tl.store(out + text.to(tl.int64) * out_stride + channel, total, mask=exists)
