"""The forward pass of a thread: all layers for its rows, without returning to Python.

A layer has three phases. Rows are independent in the first and the last one, and texts and heads in
the second one:

    rows     codes of x, query, key and value
    items    attention of one head within one text
    rows     output, residual, LayerNorm, feed-forward part, residual, LayerNorm

Threads that share texts wait for each other before and after the second phase. Threads that share
few rows run `columns` instead. No result depends on how rows and items are divided.
"""

from __future__ import annotations

from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import I64, PTR, Function, Module, Value
from qdqbert.engines.native.kernels.attention import emit_attention
from qdqbert.engines.native.kernels.columns import emit_columns
from qdqbert.engines.native.kernels.dot import PANEL, emit_dots
from qdqbert.engines.native.kernels.embedding import emit_embedding
from qdqbert.engines.native.kernels.linear import emit_activations, emit_linears
from qdqbert.engines.native.kernels.norm import emit_norms
from qdqbert.engines.native.kernels.product import emit_product
from qdqbert.engines.native.kernels.split import emit_split
from qdqbert.engines.native.kernels.threads import emit_barrier, emit_mailbox
from qdqbert.engines.native.records import CODES, JOB, LAYER, LINEAR, MODEL, THREAD

BLOCK = 128
"""Rows that are computed together: their activations stay in the second-level cache."""

INNER_BLOCK = 32
"""Rows of the feed-forward part that are in float32 at a time if scales are dynamic."""

SPARE_ROWS = 32
"""Rows after the last one that kernels may read."""


def build_module(isa: InstructionSet, activation: str, *, dynamic: bool = False) -> Module:
    """Return all kernels of a model.

    Args:
        isa: The instruction set.
        activation: Name of the activation function of the feed-forward part.
        dynamic: Whether each row of codes gets its own scale while the model runs.
    """
    module = Module('"prefer-vector-width"="512"')
    emit_dots(module, isa)
    emit_linears(module, isa, activation, dynamic=dynamic)
    emit_norms(module, isa, dynamic=dynamic)
    emit_product(module, isa)
    if isa.amx:
        emit_split(module)
    emit_attention(module, isa, dynamic=dynamic)
    emit_embedding(module, isa)
    emit_barrier(module, isa)
    emit_activations(module)
    _emit_projections(module)
    _emit_rest(module, activation, dynamic=dynamic)
    with module.function("forward", model=PTR, job=PTR, thread=PTR) as f:
        _forward(f, isa)
    emit_columns(module, isa, activation, dynamic=dynamic)
    emit_mailbox(module, isa)
    return module


def _forward(f: Function, isa: InstructionSet) -> None:
    if isa.amx:
        f.call("amx_start")
    first, last, first_item, last_item = (
        THREAD.read(f, f.thread, name)
        for name in ("first_row", "last_row", "first_item", "last_item")
    )
    with (
        f.when(MODEL.read(f, f.model, "embeds").equals(1)),
        f.loop(first, last, BLOCK) as row,
    ):
        rows = (last - row).minimum(BLOCK)
        f.call("embed", f.model, f.job, f.thread, row, rows)
    with f.loop(0, MODEL.read(f, f.model, "layer_count")) as index:
        layer = MODEL.read(f, f.model, "layers") + index * LAYER.size
        with f.loop(first, last, BLOCK) as row:
            rows = (last - row).minimum(BLOCK)
            f.call("project", f.model, layer, f.job, f.thread, row, rows)
        f.call("wait", f.job)
        with f.loop(first_item, last_item) as item:
            f.call("attention", f.model, layer, f.job, f.thread, item)
        f.call("wait", f.job)
        with f.loop(first, last, BLOCK) as row:
            rows = (last - row).minimum(BLOCK)
            f.call("feed_forward", f.model, layer, f.job, f.thread, row, rows)
    if isa.amx:
        f.call("amx_end")


def _emit_projections(module: Module) -> None:
    """Write `project`: hidden states of some rows to queries, keys and values of some heads."""
    with module.function(
        "project", model=PTR, layer=PTR, job=PTR, thread=PTR, row=I64, rows=I64
    ) as f:
        hidden = MODEL.read(f, f.model, "hidden")
        x = JOB.read(f, f.job, "x") + f.row * hidden * 4
        codes = THREAD.read(f, f.thread, "codes")
        inputs = LAYER.read(f, f.layer, "projection_codes")
        has_own_codes = LAYER.read(f, f.layer, "shares_codes") ^ 1
        scale = THREAD.read(f, f.thread, "row_scale")
        f.call("quantize_rows", inputs, x, hidden * 4, f.rows, codes, hidden, scale)
        _project(f, 0, "queries", codes)
        with f.when(has_own_codes.differs(0)):
            own = inputs + CODES.size
            f.call("quantize_rows", own, x, hidden * 4, f.rows, codes, hidden, scale)
        _project(f, 1, "keys", codes)
        with f.when(has_own_codes.differs(0)):
            own = inputs + 2 * CODES.size
            f.call("quantize_rows", own, x, hidden * 4, f.rows, codes, hidden, scale)
        _project(f, 2, "values", codes)


def _project(f: Function, index: int, out: str, codes: Value) -> None:
    """Write one of the three projections."""
    hidden, width, size = (
        MODEL.read(f, f.model, name) for name in ("hidden", "width", "head_size")
    )
    first, last = (THREAD.read(f, f.thread, name) * size for name in ("first_head", "last_head"))
    f.call(
        "linear_float",
        LAYER.read(f, f.layer, "projections") + index * LINEAR.size,
        first // PANEL,
        (last - first) // PANEL,
        codes,
        hidden,
        f.rows,
        JOB.read(f, f.job, out) + (f.row * width + first) * 4,
        width * 4,
        THREAD.read(f, f.thread, "row_scale"),
        f.layer,
    )


def _emit_rest(module: Module, activation: str, *, dynamic: bool) -> None:
    """Write `feed_forward`: what follows attention in a layer, for some rows."""
    with module.function(
        "feed_forward", model=PTR, layer=PTR, job=PTR, thread=PTR, row=I64, rows=I64
    ) as f:
        hidden, width, inner = (
            MODEL.read(f, f.model, name) for name in ("hidden", "width", "inner")
        )
        record = {name: LAYER.read(f, f.layer, name) for name in LAYER.fields}
        x = JOB.read(f, f.job, "x") + f.row * hidden * 4
        codes, inner_codes, scale = (
            THREAD.read(f, f.thread, name) for name in ("codes", "inner", "row_scale")
        )
        stride = hidden * 4
        context = JOB.read(f, f.job, "context")
        if dynamic:
            rows = context + f.row * width * 4
            context = inner_codes
            own = record["context_codes"]
            f.call("quantize_rows", own, rows, width * 4, f.rows, context, width, scale)
        else:
            context = context + f.row * width
        _linear(f, "linear_add", record["output"], context, width, f.rows, x, stride, scale)
        f.call("layer_norm", record["attention_norm"], x, stride, f.rows)
        f.call("quantize_rows", record["up_codes"], x, stride, f.rows, codes, hidden, scale)
        up, down_codes = record["up"], record["down_codes"]
        if dynamic:
            with f.loop(0, f.rows, INNER_BLOCK) as row:
                count = (f.rows - row).minimum(INNER_BLOCK)
                floats = THREAD.read(f, f.thread, "inner_float")
                scales = scale + row * 4
                source = codes + row * hidden
                kernel = f"linear_{activation}"
                _linear(f, kernel, up, source, hidden, count, floats, inner * 4, scales)
                out = inner_codes + row * inner
                f.call("quantize_rows", down_codes, floats, inner * 4, count, out, inner, scales)
        else:
            kernel = f"linear_codes_{activation}"
            _linear(
                f, kernel, up, codes, hidden, f.rows, inner_codes, inner, scale, extra=down_codes
            )
        down = record["down"]
        _linear(f, "linear_add", down, inner_codes, inner, f.rows, x, stride, scale)
        f.call("layer_norm", record["norm"], x, stride, f.rows)


def _linear(
    f: Function,
    kernel: str,
    linear: Value,
    codes: Value,
    code_stride: Value,
    rows: Value,
    out: Value,
    out_stride: Value,
    row_scale: Value,
    *,
    extra: Value | None = None,
) -> None:
    """Write the call of a linear layer's kernel, with all columns."""
    panels = LINEAR.read(f, linear, "panels")
    f.call(
        kernel,
        linear,
        0,
        panels,
        codes,
        code_stride,
        rows,
        out,
        out_stride,
        row_scale,
        linear if extra is None else extra,
    )
