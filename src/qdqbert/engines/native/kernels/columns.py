"""The forward pass of threads that share few rows: each computes a part of all columns.

With few rows, a linear layer takes as long as reading its weights. So each thread reads its own
part of them: some heads, and some columns of the other layers. Everything else is done by all
threads for all rows, with the hidden states in a buffer of each thread. They wait for each other
four times in a layer:

    own heads      query, key and value, attention               wait
    own columns    output                                        wait, residual, LayerNorm
    own columns    first layer of the feed-forward part          wait
    own columns    second layer of the feed-forward part         wait, residual, LayerNorm

Every number is computed as in `forward`, so that results have the same bits.
"""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.kernels.attention import attend
from qdqbert.engines.native.kernels.dot import PANEL, bytes_of_codes
from qdqbert.engines.native.kernels.gate import INNER_BLOCK
from qdqbert.engines.native.kernels.norm import normalize_attention
from qdqbert.engines.native.kernels.projections import project_all
from qdqbert.engines.native.kernels.second_add import keep
from qdqbert.engines.native.kernels.weights import each_layer, first_weights, weights_of
from qdqbert.engines.native.records import JOB, LAYER, MODEL, ROW_SCALE, THREAD


def emit_columns(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `forward_columns`, with the same arguments as `forward`, and its helpers.

    Args:
        module: The module, with all other kernels.
        isa: The instruction set.
        features: The parts of the model.
    """
    _emit_add_rows(module, isa.lanes)
    with module.function(
        "feed_forward_columns",
        model=PTR,
        layer=PTR,
        job=PTR,
        thread=PTR,
        reader=PTR,
        following=PTR,
    ) as f:
        _feed_forward(f, features)
    with module.function("forward_columns", model=PTR, job=PTR, thread=PTR) as f:
        isa.tiles.begin(f)
        rows = THREAD.read(f, f.thread, "last_row")
        records = f.own("model", "job", "thread")
        f.call("begin", **records, row=0, rows=rows)
        with each_layer(f) as (layer, reader, next_layer):
            first, last = (THREAD.read(f, f.thread, name) for name in ("first_head", "last_head"))
            output = _own_weights(f, LAYER.read(f, layer, "output"), "hidden")
            project_all(f, layer, f.constant(I64, 0), rows, first, last - first, output)
            texts = JOB.read(f, f.job, "texts")
            with f.loop(0, texts) as text, f.loop(first, last) as head:
                attend(f, layer, text, head, MODEL.read(f, f.model, "limit"))
            f.call("wait", f.job)
            following = first_weights(f, next_layer, first)
            rest = {"layer": layer, "reader": reader, "following": following}
            f.call("feed_forward_columns", **records, **rest)
        isa.tiles.end(f)
        THREAD.write(f, f.thread, "passes", THREAD.read(f, f.thread, "passes") + 1)


def _feed_forward(f: Function, features: Features) -> None:
    dynamic = features.dynamic
    hidden, width, inner = (MODEL.read(f, f.model, name) for name in ("hidden", "width", "inner"))
    record = {name: LAYER.read(f, f.layer, name) for name in LAYER.fields}
    rows = THREAD.read(f, f.thread, "last_row")
    x, context = (JOB.read(f, f.job, name) for name in ("x", "context"))
    first_sums, inner_values = (JOB.read(f, f.job, name) for name in ("sums", "inner"))
    second_sums = first_sums + rows * hidden * 4
    codes, inner_codes, scales = (
        THREAD.read(f, f.thread, name) for name in ("codes", "inner", "row_scales")
    )

    following = {
        "output": _own_weights(f, record["up"], "inner"),
        "up": _own_weights(f, record["down"], "hidden"),
        "down": f.following,
    }

    def linear(kernel: str, name: str, part: str, *places: Value, element: int = 4) -> None:
        kinds = (record["down_codes"], following[name], element)
        _linear(f, kernel, record[name], part, *kinds, *places)

    def add(sums: Value, name: str) -> None:
        f.call("wait", f.job)
        if features.rounds_adds:
            f.call("add_rounded_rows", record[name], x, sums, hidden, rows)
        else:
            f.call("add_rows", x, sums, rows * hidden)

    def quantize(name: str, x: Value, channels: Value, out: Value) -> None:
        out_stride = bytes_of_codes(channels)
        f.call(
            "quantize_rows",
            extra=record[name],
            x=x,
            stride=channels * 4,
            channels=channels,
            rows=rows,
            out=out,
            out_stride=out_stride,
            row_scales=scales,
        )

    codes_stride, inner_stride = bytes_of_codes(hidden), bytes_of_codes(inner)
    context_stride = width
    if dynamic:
        quantize("context_codes", context, width, inner_codes)
        context, context_stride = inner_codes, bytes_of_codes(width)
    linear("linear_float", "output", "hidden", context, context_stride, first_sums, hidden * 4)
    if features.adds_twice:
        keep(f, x, hidden, rows)
    add(first_sums, "attention_add")
    states = (x, hidden * 4, hidden, rows, codes, codes_stride, scales)
    normalize_attention(f, features, record, *states)
    if features.gated:
        linear("linear_float", "up", "inner", codes, codes_stride, inner_values, inner * 8)
        f.call("wait", f.job)
        _quantize_gated(f, record["down_codes"], inner_values, rows)
        inner_values = inner_codes
    elif dynamic:
        kernel = f"linear_{features.activation}"
        linear(kernel, "up", "inner", codes, codes_stride, inner_values, inner * 4)
        f.call("wait", f.job)
        quantize("down_codes", inner_values, inner, inner_codes)
        inner_values = inner_codes
    else:
        kernel = f"linear_codes_{features.activation}"
        linear(kernel, "up", "inner", codes, codes_stride, inner_values, inner_stride, element=1)
        f.call("wait", f.job)
    linear("linear_float", "down", "hidden", inner_values, inner_stride, second_sums, hidden * 4)
    add(second_sums, "add")
    f.call("end_layer", **f.own("model", "layer", "job", "thread", "reader"), row=0, rows=rows)


def _linear(
    f: Function,
    kernel: str,
    linear: Value,
    part: str,
    extra: Value,
    following: Value,
    element: int,
    source: Value,
    source_stride: Value,
    out: Value,
    out_stride: Value,
) -> None:
    """Write a linear layer for all rows and the columns of this thread."""
    first, panels = (THREAD.read(f, f.thread, f"{each}_{part}") for each in ("first", "own"))
    rows, scales = (THREAD.read(f, f.thread, name) for name in ("last_row", "row_scales"))
    place = out + first * (PANEL * element)
    f.call(
        kernel,
        linear=linear,
        first=first,
        panels=panels,
        codes=source,
        code_stride=source_stride,
        rows=rows,
        out=place,
        out_stride=out_stride,
        row_scales=scales,
        extra=extra,
        following=following,
    )


def _own_weights(f: Function, linear: Value, part: str) -> Value:
    """Return the weights of the columns of this thread."""
    return weights_of(f, linear, THREAD.read(f, f.thread, f"first_{part}"))


def _quantize_gated(f: Function, codes: Value, x: Value, rows: Value) -> None:
    """Write the codes of all products with a gate, which each thread needs for its columns."""
    inner = MODEL.read(f, f.model, "inner")
    floats, out, scales = (
        THREAD.read(f, f.thread, name) for name in ("inner_float", "inner", "row_scales")
    )
    with f.loop(0, rows, INNER_BLOCK) as row:
        count = (rows - row).minimum(INNER_BLOCK)
        f.call("gate_rows", x + row * inner * 8, inner * 8, count, inner, floats, inner * 4)
        stride = bytes_of_codes(inner)
        places = (out + row * stride, stride, scales + row * ROW_SCALE)
        f.call("quantize_rows", codes, floats, inner * 4, inner, count, *places)


def _emit_add_rows(module: Module, lanes: int) -> None:
    """Write `add_rows`, which adds some float32 to as many others, a multiple of 64."""
    floats = vector(F32, lanes)
    with (
        module.function("add_rows", x=PTR, other=PTR, count=I64) as f,
        f.loop(0, f.count, lanes) as each,
    ):
        place = f.x + each * 4
        f.store(f.load(floats, place) + f.load(floats, f.other + each * 4), place)
