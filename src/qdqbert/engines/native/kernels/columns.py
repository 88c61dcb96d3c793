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

from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import F32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.kernels.attention import attend
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.projections import project_all
from qdqbert.engines.native.records import JOB, LAYER, MODEL, THREAD


def emit_columns(module: Module, isa: InstructionSet, activation: str, *, dynamic: bool) -> None:
    """Write `forward_columns`, with the arguments of `forward`, and what it needs.

    Args:
        module: The module, with all other kernels.
        isa: The instruction set.
        activation: Name of the activation function of the feed-forward part.
        dynamic: Whether each row of codes gets its own scale while the model runs.
    """
    _emit_add_rows(module, isa.lanes)
    with module.function("feed_forward_columns", model=PTR, layer=PTR, job=PTR, thread=PTR) as f:
        _feed_forward(f, activation, dynamic=dynamic)
    with module.function("forward_columns", model=PTR, job=PTR, thread=PTR) as f:
        if isa.amx:
            f.call("amx_start")
        rows = THREAD.read(f, f.thread, "last_row")
        f.call("embed", f.model, f.job, f.thread, 0, rows)
        with f.loop(0, MODEL.read(f, f.model, "layer_count")) as index:
            layer = MODEL.read(f, f.model, "layers") + index * LAYER.size
            first, last = (THREAD.read(f, f.thread, name) for name in ("first_head", "last_head"))
            project_all(f, layer, f.constant(I64, 0), rows, first, last - first)
            texts = JOB.read(f, f.job, "texts")
            with f.loop(0, texts) as text, f.loop(first, last) as head:
                attend(f, layer, text, head)
            f.call("wait", f.job)
            f.call("feed_forward_columns", f.model, layer, f.job, f.thread)
        if isa.amx:
            f.call("amx_end")


def _feed_forward(f: Function, activation: str, *, dynamic: bool) -> None:
    hidden, width, inner = (MODEL.read(f, f.model, name) for name in ("hidden", "width", "inner"))
    record = {name: LAYER.read(f, f.layer, name) for name in LAYER.fields}
    rows = THREAD.read(f, f.thread, "last_row")
    x, context = (JOB.read(f, f.job, name) for name in ("x", "context"))
    first_sums, inner_values = (JOB.read(f, f.job, name) for name in ("sums", "inner"))
    second_sums = first_sums + rows * hidden * 4
    codes, inner_codes, scale = (
        THREAD.read(f, f.thread, name) for name in ("codes", "inner", "row_scale")
    )

    def linear(
        kernel: str,
        name: str,
        part: str,
        source: Value,
        source_stride: Value,
        out: Value,
        out_stride: Value,
        element: int,
    ) -> None:
        first, panels = (THREAD.read(f, f.thread, f"{each}_{part}") for each in ("first", "own"))
        f.call(
            kernel,
            record[name],
            first,
            panels,
            source,
            source_stride,
            rows,
            out + first * (PANEL * element),
            out_stride,
            scale,
            record["down_codes"],
        )

    def add_and_normalize(sums: Value, norm: str) -> None:
        f.call("wait", f.job)
        f.call("add_rows", x, sums, rows * hidden)
        f.call("layer_norm", record[norm], x, hidden * 4, rows)

    if dynamic:
        own = record["context_codes"]
        f.call("quantize_rows", own, context, width * 4, rows, inner_codes, width, scale)
        context = inner_codes
    linear("linear_float", "output", "hidden", context, width, first_sums, hidden * 4, 4)
    add_and_normalize(first_sums, "attention_norm")
    f.call("quantize_rows", record["up_codes"], x, hidden * 4, rows, codes, hidden, scale)
    if dynamic:
        kernel = f"linear_{activation}"
        linear(kernel, "up", "inner", codes, hidden, inner_values, inner * 4, 4)
        f.call("wait", f.job)
        down = record["down_codes"]
        f.call("quantize_rows", down, inner_values, inner * 4, rows, inner_codes, inner, scale)
        inner_values = inner_codes
    else:
        kernel = f"linear_codes_{activation}"
        linear(kernel, "up", "inner", codes, hidden, inner_values, inner, 1)
        f.call("wait", f.job)
    linear("linear_float", "down", "hidden", inner_values, inner, second_sums, hidden * 4, 4)
    add_and_normalize(second_sums, "norm")


def _emit_add_rows(module: Module, lanes: int) -> None:
    """Write `add_rows`, which adds some float32 to as many others, a multiple of 64."""
    floats = vector(F32, lanes)
    with (
        module.function("add_rows", x=PTR, other=PTR, count=I64) as f,
        f.loop(0, f.count, lanes) as each,
    ):
        place = f.x + each * 4
        f.store(f.load(floats, place) + f.load(floats, f.other + each * 4), place)
