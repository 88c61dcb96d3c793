"""The forward pass of a thread: all layers for its rows, without returning to Python.

A layer has three phases. Rows are independent in the first and the last one, and texts and heads in
the second one:

    rows     codes of x, query, key and value
    items    attention of one head within one text
    rows     output, residual, LayerNorm, feed-forward part, residual, LayerNorm

A thread that has its own texts computes all phases for a few texts, and the first two for a few
heads, so that its results stay in cache. Threads that share texts wait for each other before and
after the second phase. Threads that share few rows have some heads in the first two phases, and
some columns in the last one (`feed_forward`). No result depends on how the work is divided.

Each linear layer gets the address of the weights that are read after its own, and brings their
start into the cache.

If only the first or the last token of each text is read after the last layer, it computes keys and
values of all rows, and everything else of these tokens. Threads that share columns compute all rows
there, too: few rows take the time in which weights are read.
"""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import I64, Function, Module, Value
from qdqbert.engines.native.kernels.attention import attend, emit_attention
from qdqbert.engines.native.kernels.blocks import row_blocks
from qdqbert.engines.native.kernels.embedding import emit_embedding
from qdqbert.engines.native.kernels.experts import emit_experts
from qdqbert.engines.native.kernels.feed_forward import emit_feed_forward, weights_after_attention
from qdqbert.engines.native.kernels.gate import emit_gate
from qdqbert.engines.native.kernels.linear import emit_activations, emit_linears
from qdqbert.engines.native.kernels.norm import emit_norms
from qdqbert.engines.native.kernels.padding import emit_padding
from qdqbert.engines.native.kernels.pooling import emit_pooling
from qdqbert.engines.native.kernels.product import emit_product
from qdqbert.engines.native.kernels.projections import emit_projections, project_all
from qdqbert.engines.native.kernels.read_tokens import emit_read_tokens, reads_one, token_read
from qdqbert.engines.native.kernels.rotation import emit_rotation
from qdqbert.engines.native.kernels.round_trip import emit_round_trips
from qdqbert.engines.native.kernels.threads import emit_barrier, emit_mailbox
from qdqbert.engines.native.kernels.weights import each_layer, first_weights
from qdqbert.engines.native.kernels.words import emit_words
from qdqbert.engines.native.records import JOB, LAYER, MODEL, RECORDS, THREAD

SPARE_ROWS = 32
"""Rows after the last one that kernels may read."""

_PROJECTED = ("queries", "keys", "values")


def build_module(isa: InstructionSet, features: Features) -> Module:
    """Return all kernels of a model with these features."""
    activation, dynamic, floats = features.activation, features.dynamic, features.floats
    module = Module('"prefer-vector-width"="512"')
    isa.tiles.emit(module, isa)
    rounds_adds = features.rounds_adds
    emit_linears(module, isa, activation, floats=floats, dynamic=dynamic, rounds_adds=rounds_adds)
    if rounds_adds or features.rounds_attention:
        emit_round_trips(module, isa.lanes)
    emit_norms(module, isa, features)
    emit_product(module, isa)
    isa.products.emit(module, isa)
    if features.gated:
        emit_gate(module, isa, activation, floats=floats)
    if features.rotary:
        emit_rotation(module, isa)
    emit_attention(module, isa, features)
    emit_embedding(module, isa, features)
    emit_barrier(module, isa)
    emit_activations(module, floats=floats)
    emit_padding(module, isa)
    emit_read_tokens(module)
    emit_pooling(module)
    emit_projections(module, features)
    if features.has_experts:
        emit_experts(module, isa, features)
    emit_feed_forward(module, isa, features)
    _emit_texts(module, features)
    _emit_rows(module, features)
    _emit_columns(module)
    with module.function("forward", "model*, job*, thread*") as f:
        _forward(f, isa)
    if features.scores_words:
        emit_words(module, isa)
    emit_mailbox(module, isa)
    return module


def _forward(f: Function, isa: InstructionSet) -> None:
    isa.tiles.begin(f)
    first, last = THREAD.each(f.thread, "first_row", "last_row")
    records = f.own("model, job, thread")
    with row_blocks(f, first, last) as (row, rows):
        f.call("begin", **records, row=row, rows=rows)
    has_texts = JOB.read(f.job, "threads").equals(1)
    by_columns = JOB.read(f.job, "by_columns").equals(1)
    first_head = by_columns.select(THREAD.read(f.thread, "first_head"), f.constant(I64, 0))
    with each_layer(f) as (layer, reader, following):
        with f.when(has_texts):
            parts, count = THREAD.each(f.thread, "parts", "part_count")
            again, next_layer = (first_weights(f, each) for each in (layer, following))
            with f.loop(0, count) as part:
                first_text, end = (f.load(I64, parts + (part + each) * 8) for each in (0, 1))
                f.call(
                    "run_texts",
                    **records,
                    layer=layer,
                    reader=reader,
                    first=first_text,
                    last=end,
                    following=(part + 1 < count).select(again, next_layer),
                )
        weights = first_weights(f, following, first_head)
        arguments = {**records, "layer": layer, "reader": reader, "following": weights}
        with f.when((has_texts | by_columns) ^ 1):
            f.call("run_rows", **arguments)
        with f.when(by_columns):
            f.call("run_columns", **arguments)
    isa.tiles.end(f)
    THREAD.write(f.thread, "passes", THREAD.read(f.thread, "passes") + 1)


def _emit_texts(module: Module, features: Features) -> None:
    """Write `run_texts`: a layer for some texts of a thread.

    Its arguments are the records, the layer that reads the states, the first text, the end of the
    texts, and the weights that are read after the layer's own.

    Queries, keys and values of a few heads at a time stay in the second-level cache. All parts of
    a thread's texts have them at the same place.
    """
    with module.function("run_texts", f"{RECORDS}, reader*, first, last, following*") as f:
        width, heads, size, group = MODEL.each(f.model, "width", "heads", "head_size", "group")
        starts = JOB.read(f.job, "starts")
        first_row = f.load(I64, starts + f.first * 8)
        rows = f.load(I64, starts + f.last * 8) - first_row
        own = THREAD.read(f.thread, "first_row") * width
        parts = [JOB.read(f.job, name) + own * 4 for name in _PROJECTED]
        context = JOB.read(f.job, "context") + own * _bytes_of_context(features)
        stride, records = group * size * 4, f.own(RECORDS)
        output = weights_after_attention(f)
        one = reads_one(f, f.reader)
        with f.loop(0, heads, group) as head:
            count = (heads - head).minimum(group)
            again, others = (first_weights(f, f.layer, each) for each in (head, head + count))
            next_heads = (head + count < heads).select(others, output)
            with row_blocks(f, f.constant(I64, 0), rows) as (row, some):
                places = [each + row * stride for each in parts]
                following = (row + some < rows).select(again, next_heads)
                f.call(
                    "project",
                    **records,
                    row=first_row + row,
                    rows=some,
                    head=head,
                    heads=count,
                    **dict(zip(_PROJECTED, places, strict=True)),
                    stride=stride,
                    following=following,
                )
            with f.loop(f.first, f.last) as text, f.loop(head, head + count) as each:
                f.call(
                    "attention",
                    **records,
                    first_row=first_row,
                    first_head=head,
                    **dict(zip(_PROJECTED, parts, strict=True)),
                    stride=stride,
                    context=context,
                    text_index=text,
                    head=each,
                    one=one.cast("zext", I64),
                )
        _rest_of_layer(f, features, one, first_row, rows, context, f.first, f.last)


def _emit_rows(module: Module, features: Features) -> None:
    """Write `run_rows`: a layer for some rows and items of a thread that shares texts.

    Its arguments are the records, the layer that reads the states, and the weights that are read
    after the layer's own.
    """
    with module.function("run_rows", f"{RECORDS}, reader*, following*") as f:
        first, last, first_item, last_item = THREAD.each(
            f.thread, "first_row", "last_row", "first_item", "last_item"
        )
        heads = MODEL.read(f.model, "heads")
        again = first_weights(f, f.layer)
        output = weights_after_attention(f)
        with row_blocks(f, first, last) as (row, rows):
            following = (row + rows < last).select(again, output)
            project_all(f, f.layer, row, rows, f.constant(I64, 0), heads, following)
        f.call("wait", f.job)
        one = reads_one(f, f.reader)
        with f.loop(first_item, last_item) as item:
            attend(f, f.layer, item // heads, item % heads, one.cast("zext", I64))
        f.call("wait", f.job)
        width, element = MODEL.read(f.model, "width"), _bytes_of_context(features)
        context = JOB.read(f.job, "context") + first * width * element
        text, end = f.variable(f.constant(I64, 0)), f.variable(f.constant(I64, 0))
        with f.when(one):
            text.set(_texts_before(f, first))
            end.set(_texts_before(f, last))
        _rest_of_layer(f, features, one, first, last - first, context, text.get(), end.get())


def _emit_columns(module: Module) -> None:
    """Write `run_columns`: a layer for the heads and columns of a thread that shares few rows.

    It takes the same arguments as `run_rows`.
    """
    with module.function("run_columns", f"{RECORDS}, reader*, following*") as f:
        rows, first, last, panel = THREAD.each(
            f.thread, "last_row", "first_head", "last_head", "first_hidden"
        )
        start = f.constant(I64, 0)
        output = weights_after_attention(f, panel)
        project_all(f, f.layer, start, rows, first, last - first, output)
        texts = JOB.read(f.job, "texts")
        with f.loop(0, texts) as text, f.loop(first, last) as head:
            attend(f, f.layer, text, head, start)
        f.call("wait", f.job)
        f.call(
            "feed_forward_columns",
            **f.own(f"{RECORDS}, reader, following"),
            row=start,
            rows=rows,
            context=JOB.read(f.job, "context"),
        )


def _texts_before(f: Function, row: Value) -> Value:
    """Return the number of texts whose token that is read is before a row."""
    count = f.variable(f.constant(I64, 0))
    with f.loop(0, JOB.read(f.job, "texts")) as text:
        is_before = f.load(I64, token_read(f, text)) < row
        count.set(count.get() + is_before.cast("zext", I64))
    return count.get()


def _bytes_of_context(features: Features) -> int:
    return 4 if features.contexts_are_floats else 1


def _rest_of_layer(
    f: Function,
    features: Features,
    one: Value,
    first_row: Value,
    rows: Value,
    context: Value,
    text: Value,
    end: Value,
) -> None:
    """Write the part of a layer after attention, for some rows, whose contexts start at `context`.

    With `one`, it is for the tokens of the texts from `text` to `end` that are read, among these
    rows.
    """
    hidden, width = MODEL.each(f.model, "hidden", "width")
    context_bytes = width * _bytes_of_context(features)
    x, own = JOB.read(f.job, "x"), (token_read(f, text), end - text)
    first, place = f.variable(first_row), f.variable(context)
    with f.when(one & (end > text)):
        first.set(f.load(I64, own[0]))
        place.set(context + (first.get() - first_row) * context_bytes)
        f.call("gather_read", x + first.get() * hidden * 4, hidden * 4, *own)
        f.call("gather_read", place.get(), context_bytes, *own)
    first_row, context = first.get(), place.get()
    count = one.select(end - text, rows)
    output = weights_after_attention(f)
    records = f.own(f"{RECORDS}, reader")
    blocks = f.variable(count)
    if features.has_experts:
        with f.when(LAYER.read(f.layer, "experts").differs(0)):
            rows_read = {"row": first_row, "rows": count, "context": context}
            f.call("run_experts", **records, **rows_read, following=f.following)
            blocks.set(0)
    with row_blocks(f, f.constant(I64, 0), blocks.get()) as (row, some):
        following = (row + some < count).select(output, f.following)
        f.call(
            "feed_forward",
            **records,
            row=first_row + row,
            rows=some,
            context=context + row * context_bytes,
            following=following,
        )
    with f.when(one):
        f.call("return_read", x + first_row * hidden * 4, hidden * 4, *own)
