"""The forward pass of a thread: all layers for its rows, without returning to Python.

A layer has three phases. Rows are independent in the first and the last one, and texts and heads in
the second one:

    rows     codes of x, query, key and value, and their codes
    items    attention of one head within one text
    rows     output, residual, LayerNorm, feed-forward part, residual, LayerNorm

Threads that share texts wait for each other before and after the second phase. No result depends on
how rows and items are divided.
"""

from __future__ import annotations

from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import I64, PTR, Function, Module
from qdqbert.engines.native.kernels.attention import emit_attention
from qdqbert.engines.native.kernels.dot import emit_dots
from qdqbert.engines.native.kernels.embedding import emit_embedding
from qdqbert.engines.native.kernels.linear import emit_activations, emit_linears
from qdqbert.engines.native.kernels.norm import emit_norms
from qdqbert.engines.native.kernels.product import emit_product
from qdqbert.engines.native.kernels.threads import emit_barrier, emit_mailbox
from qdqbert.engines.native.records import CODES, JOB, LAYER, LINEAR, MODEL, THREAD

BLOCK = 128
"""Rows that are computed together: their activations stay in the second-level cache."""

SPARE_ROWS = 32
"""Rows after the last one that kernels may read."""


def build_module(isa: InstructionSet, activation: str) -> Module:
    """Return all kernels of a model.

    Args:
        isa: The instruction set.
        activation: Name of the activation function of the feed-forward part.
    """
    module = Module('"prefer-vector-width"="512"')
    emit_dots(module, isa)
    emit_linears(module, isa, (activation,))
    emit_norms(module, isa)
    emit_attention(module, isa)
    emit_embedding(module, isa)
    emit_barrier(module, isa)
    emit_product(module, isa)
    emit_activations(module)
    _emit_projections(module)
    _emit_rest(module, activation)
    with module.function("forward", model=PTR, job=PTR, thread=PTR) as f:
        _forward(f, isa)
    emit_mailbox(module, isa)
    return module


def _forward(f: Function, isa: InstructionSet) -> None:
    if isa.amx:
        f.call("amx_start")
    first, last, first_item, last_item = (
        THREAD.read(f, f.thread, name)
        for name in ("first_row", "last_row", "first_item", "last_item")
    )
    f.call("embed", f.model, f.job, first, last)
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
    """Write `project`: hidden states of some rows to codes of queries, keys and values."""
    with module.function(
        "project", model=PTR, layer=PTR, job=PTR, thread=PTR, row=I64, rows=I64
    ) as f:
        hidden, width, heads, size = (
            MODEL.read(f, f.model, name) for name in ("hidden", "width", "heads", "head_size")
        )
        x = JOB.read(f, f.job, "x") + f.row * hidden * 4
        codes, projected = (THREAD.read(f, f.thread, name) for name in ("codes", "projected"))
        count = LAYER.read(f, f.layer, "projection_count")
        linears, inputs = (
            LAYER.read(f, f.layer, name) for name in ("projections", "projection_codes")
        )
        with f.loop(0, count) as each:
            f.call(
                "quantize_rows", inputs + each * CODES.size, x, hidden * 4, f.rows, codes, hidden
            )
            f.call(
                "linear_float",
                linears + each * LINEAR.size,
                codes,
                hidden,
                f.rows,
                projected + each * width * 4,
                width * 12,
                f.layer,
            )
        for index, (out, zero) in enumerate((("queries", 128), ("keys", 0), ("values", 0))):
            scales = {"queries": "query_scale", "keys": "key_scale", "values": "value_scale"}[out]
            f.call(
                "quantize_heads",
                projected + width * (4 * index),
                width * 12,
                f.rows,
                heads,
                size,
                JOB.read(f, f.job, out) + f.row * width,
                width,
                JOB.read(f, f.job, scales) + f.row * 4,
                JOB.read(f, f.job, "scale_stride"),
                zero,
            )


def _emit_rest(module: Module, activation: str) -> None:
    """Write `feed_forward`: what follows attention in a layer, for some rows."""
    with module.function(
        "feed_forward", model=PTR, layer=PTR, job=PTR, thread=PTR, row=I64, rows=I64
    ) as f:
        hidden, width, inner = (
            MODEL.read(f, f.model, name) for name in ("hidden", "width", "inner")
        )
        record = {name: LAYER.read(f, f.layer, name) for name in LAYER.fields}
        x = JOB.read(f, f.job, "x") + f.row * hidden * 4
        context = JOB.read(f, f.job, "context") + f.row * width
        codes, inner_codes = (THREAD.read(f, f.thread, name) for name in ("codes", "inner"))
        stride = hidden * 4
        f.call("linear_add", record["output"], context, width, f.rows, x, stride, f.layer)
        f.call("layer_norm", record["attention_norm"], x, stride, f.rows)
        f.call("quantize_rows", record["up_codes"], x, stride, f.rows, codes, hidden)
        f.call(
            f"linear_codes_{activation}",
            record["up"],
            codes,
            hidden,
            f.rows,
            inner_codes,
            inner,
            record["down_codes"],
        )
        f.call("linear_add", record["down"], inner_codes, inner, f.rows, x, stride, f.layer)
        f.call("layer_norm", record["norm"], x, stride, f.rows)
