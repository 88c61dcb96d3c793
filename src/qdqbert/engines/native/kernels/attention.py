"""Attention of one head within one text, in float32.

    score[i, j] = query[i] @ key[j] * scale + position_bias[j - i]
    weight[i, j] = exp(score[i, j] - the largest score of i)
    context[i] = sum(weight[i, j] value[j]) / sum(weight[i, j])

Keys and values are packed once for each text and head, so that both products run on panels of 16
columns. A few rows of queries are computed together: their scores stay in the first-level cache.
Scores are computed in units of log(2): the packed keys have the factor `MODEL.score_scale`, which
contains log2(e), and so does the position bias.
"""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.functions import LANES, exp2, unsigned_codes
from qdqbert.engines.native.instruction_set import InstructionSet, Operands
from qdqbert.engines.native.ir import F32, I64, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import in_blocks
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.packing import DEPTH, padded_to
from qdqbert.engines.native.kernels.product import WIDEST
from qdqbert.engines.native.kernels.read_tokens import token_read
from qdqbert.engines.native.kernels.relative import emit_add_positions, relative_positions
from qdqbert.engines.native.kernels.round_trip import rounding
from qdqbert.engines.native.records import CODES, JOB, LAYER, MODEL, RECORDS, THREAD

# Smaller than any score: a weight of 2^-126, which no sum of weights shows.
_MASKED = -1e30
# Smaller than any score, and far above those that are masked. A token that attends to no token has
# weights of 2^-126, and their sum counts as this much: its context is 0.
_LEAST, _LEAST_TOTAL = -1e29, 2.0**-60
# Rows of scores that are computed together; see `_emit_softmax`.
_ROWS_OF_SOFTMAX = (4, 2, 1)


def emit_attention(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `attention`, which computes the contexts of a head within a text.

    Its arguments are the records, a row and a head, where the queries, keys and values of this row
    and head are, the bytes from one of their rows to the next, where the contexts of this row
    start, which text and head to compute, and 1 if only the token that is read gets a context.
    Contexts are float32 if scales are dynamic, as codes of a row need all heads, and in float.
    """
    isa.products.emit_pack(
        module,
        windowed=features.windowed,
        bounded=features.bounds_values,
        shared=features.shares_prefixes,
    )
    if features.shares_prefixes:
        _emit_join(module)
    if features.relative:
        emit_add_positions(module, features)
    _emit_softmax(module, isa, features)
    _emit_context(module, isa.lanes, in_float=features.contexts_are_floats)
    rows = "first_row, first_head, queries*, keys*, values*, stride, context*"
    with module.function("attention", f"{RECORDS}, {rows}, text_index, head, one") as f:
        _attention(f, isa, features)


def _attention(f: Function, isa: InstructionSet, features: Features) -> None:
    element = 4 if features.contexts_are_floats else 1
    size, width = MODEL.each(f.model, "head_size", "width")
    head, stride = f.head, f.stride
    starts = JOB.read(f.job, "starts") + f.text_index * 8
    first = f.load(I64, starts)
    length = f.load(I64, starts + 8) - first
    attended = f.load(I64, JOB.read(f.job, "attended") + f.text_index * 8)
    start = (first - f.first_row) * stride + (head - f.first_head) * size * 4
    queries, keys, values = (each + start for each in (f.queries, f.keys, f.values))
    context = f.context + ((first - f.first_row) * width + head * size) * element
    packed_queries, packed_keys, packed_values, scores, sums = THREAD.each(
        f.thread, "queries", "keys", "values", "scores", "sums"
    )
    scale = MODEL.read(f.model, "score_scale")
    bounds = LAYER.read(f.layer, "value_bounds") + head * size * 4
    prefix, own_length = f.constant(I64, 0), attended
    packed = (
        ("pack_keys", keys, scale, packed_keys),
        ("pack_values", values, f.constant(F32, 1.0), packed_values),
    )
    if features.shares_prefixes:
        prefix = JOB.read(f.job, "prefix")
        attended = attended + prefix
    for number, (pack, source, factor, out) in enumerate(packed):
        known = bounds
        if features.shares_prefixes:
            known = _known(f, number, source, own_length, prefix)
        f.call(pack, source, stride, attended, size, factor, out, bounds, known, prefix)
    zeros = f.allocate(F32, WIDEST)
    f.store(f.constant(vector(F32, WIDEST), 0.0), zeros)
    products = isa.products
    key_panel = products.bytes_of_key(size) * PANEL
    value_panel = products.panel_of_values(attended)
    relative = None
    if features.relative:
        relative = relative_positions(f, features, head, size, length, zeros)
        relative.multiply_keys(keys, stride)
    together = products.rows_together
    one = f.one.differs(0)
    first_query = f.load(I64, one.select(token_read(f, f.text_index), starts)) - first
    queries_end = one.select(first_query + 1, length)
    with f.loop(first_query, queries_end, together) as row:
        rows = (queries_end - row).minimum(together)
        query = prefix + row
        first_key, end = _keys_read(f, query, rows, attended, windowed=features.windowed)
        count = end - first_key
        columns = padded_to(count, products.columns)
        score_stride = products.bytes_of_scores(columns)
        own, own_stride = queries + row * stride, stride
        if relative is not None:
            relative.multiply_queries(own, stride, rows)
        own, own_stride = products.prepared(f, own, own_stride, rows, size, packed_queries)
        operands = Operands(
            x=own,
            stride=own_stride,
            rows=rows,
            weights=packed_keys + first_key // PANEL * key_panel,
            panel=key_panel,
            end=key_panel,
            columns=columns,
            out=scores,
            out_stride=score_stride,
            depth=size,
            zeros=zeros,
        )
        products.multiply_keys(f, operands)
        if relative is not None:
            relative.add(row, rows, first_key, end, score_stride)
        f.call(
            "softmax",
            **f.own("model, layer, thread, head"),
            query=query,
            rows=rows,
            first=first_key,
            length=count,
            padded=columns,
            stride=score_stride,
        )
        skipped = products.bytes_of_values(first_key)
        operands = Operands(
            x=scores,
            stride=score_stride,
            rows=rows,
            weights=packed_values + skipped,
            panel=value_panel,
            end=value_panel - skipped,
            columns=size,
            out=sums,
            out_stride=size * 4,
            depth=count,
            zeros=zeros,
        )
        products.multiply(f, operands)
        with f.loop(0, rows) as each:
            own = context + (row + each) * width * element
            f.call("context", f.layer, f.thread, head * size, each, size, own)


def _known(f: Function, number: int, source: Value, length: Value, prefix: Value) -> Value:
    """Return the place of the keys or values, number 0 or 1, of a prefix in a head.

    Those of a text that is a prefix of others are saved.
    """
    size, heads = MODEL.each(f.model, "head_size", "heads")
    kind = (LAYER.read(f.layer, "index") * 2 + number) * heads + f.head
    saved = JOB.read(f.job, "saved_states")
    with f.when(saved.differs(0)):
        place = saved + kind * length * size * 4
        f.call("join_rows", source, f.stride, length, size * 4, place)
    return JOB.read(f.job, "prefix_states") + kind * prefix * size * 4


def _emit_join(module: Module) -> None:
    """Write `join_rows`, which copies rows one after another.

    Its arguments are the first row and the bytes from one row to the next, the number of rows, the
    bytes of a row, a multiple of 64, and where they go.
    """
    line = vector(F32, PANEL)
    with (
        module.function("join_rows", "source*, stride, rows, bytes, out*") as f,
        f.loop(0, f.rows) as row,
        f.loop(0, f.bytes, 4 * PANEL) as byte,
    ):
        found = f.load(line, f.source + (row * f.stride + byte))
        f.store(found, f.out + (row * f.bytes + byte))


def _keys_read(
    f: Function, row: Value, rows: Value, attended: Value, *, windowed: bool
) -> tuple[Value, Value]:
    """Return the first key that some queries read, a multiple of `DEPTH`, and the end of them."""
    if not windowed:
        return f.constant(I64, 0), attended
    window, is_causal = LAYER.read(f.layer, "window"), MODEL.read(f.model, "causal").differs(0)
    first = (row - window.minimum(row)).minimum(attended) // DEPTH * DEPTH
    after = is_causal.select(f.constant(I64, 0), window)
    return first, (row + rows + after).minimum(attended)


def attend(f: Function, layer: Value, text: Value, head: Value, one: Value) -> None:
    """Write the attention of a head within a text, in the buffers of a job."""
    width = MODEL.read(f.model, "width")
    places = {name: JOB.read(f.job, name) for name in ("queries", "keys", "values", "context")}
    f.call(
        "attention",
        **f.own("model, job, thread"),
        layer=layer,
        first_row=0,
        first_head=0,
        **places,
        stride=width * 4,
        text_index=text,
        head=head,
        one=one,
    )


def _emit_softmax(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `softmax`: rows of scores to weights, and the inverse of their sum.

    If weights are fake-quantized, they are divided by their sum before, and the inverse is 1.

    A few rows are computed together, so that their steps do not wait for each other. The arguments
    are `MODEL`, `LAYER` and `THREAD` records, the head, the first query and the number of queries,
    the first key and the number of keys, the columns of the scores, and the bytes from the scores
    of a query to the next.
    """
    lanes = LANES
    with module.function(
        "softmax", "model*, layer*, thread*, head, query, rows, first, length, padded, stride"
    ) as f:
        scores, inverses = THREAD.each(f.thread, "scores", "inverse")
        stride = f.stride
        bias = LAYER.read(f.layer, "position_bias")
        with f.when(bias.differs(0)), f.loop(0, f.rows) as row:
            _add_position_bias(f, lanes, scores + row * stride, bias, f.query + row)
        is_causal = MODEL.read(f.model, "causal").differs(0)
        with f.loop(0, f.rows) as row:
            # Keys are counted from the first one.
            query, place = f.query + row - f.first, scores + row * stride
            end = is_causal.select((query + 1).minimum(f.length), f.length)
            if features.windowed:
                window = LAYER.read(f.layer, "window")
                _mask_before(f, lanes, place, query - window)
                end = end.minimum(query + window + 1)
            _mask_after(f, lanes, place, end)

        def block(row: Value, height: int) -> None:
            places = [scores + (row + each) * stride for each in range(height)]
            totals = _weigh(f, places)
            if features.windowed:
                totals = [total.maximum(_LEAST_TOTAL) for total in totals]
            found = [1.0 / total for total in totals]
            if features.rounds_attention:
                sums = _round_weights(f, places, found)
                # Rounded weights may be above 1, and so may their sum.
                totals = [2.0 * each.maximum(1.0) for each in sums]
                found = [f.constant(F32, 1.0)] * height
            isa.products.end_weights(
                f, places, totals, f.length, f.padded, windowed=features.windowed
            )
            for each, inverse in enumerate(found):
                f.store(inverse, inverses + (row + each) * 4)

        in_blocks(f, f.rows, _ROWS_OF_SOFTMAX, block)


def _weigh(f: Function, rows: list[Value]) -> list[Value]:
    """Replace rows of scores with weights, and return their sums."""
    lanes, floats = LANES, vector(F32, LANES)
    largest = [f.variable(f.constant(floats, _LEAST)) for _ in rows]
    with f.loop(0, f.padded, lanes) as key:
        for row, most in zip(rows, largest, strict=True):
            most.set(f.load(floats, row + key * 4).maximum(most.get()))
    tops = [f.splat(f.maximum_of(each.get()), lanes) for each in largest]
    totals = [f.variable(f.constant(floats, 0.0)) for _ in rows]
    with f.loop(0, f.padded, lanes) as key:
        for row, top, total in zip(rows, tops, totals, strict=True):
            place = row + key * 4
            weights = exp2(f, f.load(floats, place) - top)
            f.store(weights, place)
            total.set(total.get() + weights)
    return [f.sum_of(each.get()) for each in totals]


def _round_weights(f: Function, rows: list[Value], inverses: list[Value]) -> list[Value]:
    """Multiply rows of weights by the inverse of their sum, fake-quantize them, and return sums."""
    lanes, floats = LANES, vector(F32, LANES)
    record = LAYER.read(f.layer, "probability_rounding")
    rounded = rounding(f, record, f.constant(I64, 0), floats)
    totals = [f.variable(f.constant(floats, 0.0)) for _ in rows]
    with f.loop(0, f.padded, lanes) as key:
        for row, inverse, total in zip(rows, inverses, totals, strict=True):
            place = row + key * 4
            weights = rounded(f.load(floats, place) * f.splat(inverse, lanes))
            f.store(weights, place)
            total.set(total.get() + weights)
    return [f.sum_of(each.get()) for each in totals]


def _add_position_bias(f: Function, lanes: int, scores: Value, bias: Value, query: Value) -> None:
    """Add the bias of `key - query` to the scores of a query."""
    floats = vector(F32, lanes)
    limit = MODEL.read(f.model, "limit")
    row = bias + (f.head * (limit * 2 - 1) + limit - 1 - query + f.first) * 4
    with f.loop(0, f.length, lanes) as key:
        place = scores + key * 4
        f.store(f.load(floats, place) + f.load(floats, row + key * 4), place)


def _mask_before(f: Function, lanes: int, scores: Value, start: Value) -> None:
    """Mask the scores of the keys before `start`, which may be negative."""
    index = f.constant(vector(I64, lanes), range(lanes))
    with f.loop(0, start, lanes) as key:
        place = scores + key * 4
        is_seen = index >= f.splat(start - key, lanes)
        f.store(is_seen.select(f.load(vector(F32, lanes), place), _MASKED), place)


def _mask_after(f: Function, lanes: int, scores: Value, end: Value) -> None:
    """Mask the scores of the keys from `end`, up to the last panel."""
    index = f.constant(vector(I64, lanes), range(lanes))
    with f.loop(end // lanes * lanes, f.padded, lanes) as key:
        place = scores + key * 4
        is_seen = index < f.splat(end - key, lanes)
        f.store(is_seen.select(f.load(vector(F32, lanes), place), _MASKED), place)


def _emit_context(module: Module, lanes: int, *, in_float: bool) -> None:
    """Write `context`: sums of values to codes of the next linear layer, or to float32."""
    floats = vector(F32, lanes)
    with module.function("context", "layer*, thread*, channel, row, size, out*") as f:
        sums = THREAD.read(f.thread, "sums") + f.row * f.size * 4
        inverse = f.load(F32, THREAD.read(f.thread, "inverse") + f.row * 4)
        inverse = f.splat(inverse, lanes)
        codes = LAYER.read(f.layer, "context_codes")
        shift = f.splat(CODES.read(codes, "shift"), lanes)
        multiplier = CODES.read(codes, "multiplier") + f.channel * 4
        with f.loop(0, f.size, lanes) as channel:
            total = f.load(floats, sums + channel * 4) * inverse
            if in_float:
                f.store(total, f.out + channel * 4)
            else:
                factor = f.load(floats, multiplier + channel * 4)
                f.store_bytes(unsigned_codes(f, total, factor, shift), f.out + channel)
