"""The part of a layer after attention: output, residual, LayerNorm, feed-forward part.

A thread computes all columns of its rows, or its own columns of all rows. With few rows, a linear
layer takes as long as reading its weights. Threads that divide columns therefore read only their
own part of the weights, and compute everything else for all rows, with the hidden states in a
buffer of each thread. They wait for each other after every linear layer. Every number is computed
in the same way, so that results have the same bits.
"""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.kernels.dot import PANEL, bytes_of_codes
from qdqbert.engines.native.kernels.gate import INNER_BLOCK
from qdqbert.engines.native.kernels.norm import normalize_attention
from qdqbert.engines.native.kernels.second_add import keep
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import JOB, LAYER, LINEAR, MODEL, ROW_SCALE, THREAD

# Contents of the columns of a linear layer.
_COLUMNS = {"output": "hidden", "up": "inner", "down": "hidden"}
_READ_NEXT = {"output": "up", "up": "down"}


def emit_feed_forward(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `feed_forward`, for all columns, and `feed_forward_columns`, for a thread's columns.

    Their arguments are the records, the layer that reads the states, the first row and the number
    of rows, their contexts, and the weights that are read next.
    """
    _emit_add_rows(module, isa.lanes)
    for name, by_columns in (("feed_forward", False), ("feed_forward_columns", True)):
        with module.function(
            name,
            model=PTR,
            layer=PTR,
            job=PTR,
            thread=PTR,
            reader=PTR,
            row=I64,
            rows=I64,
            context=PTR,
            following=PTR,
        ) as f:
            _feed_forward(f, features, by_columns=by_columns)


def _feed_forward(f: Function, features: Features, *, by_columns: bool) -> None:
    dynamic = features.dynamic
    hidden, width, inner = (MODEL.read(f, f.model, name) for name in ("hidden", "width", "inner"))
    record = {name: LAYER.read(f, f.layer, name) for name in LAYER.fields}
    codes, inner_codes, scales = (
        THREAD.read(f, f.thread, name) for name in ("codes", "inner", "row_scales")
    )
    # Results of linear layers that all threads read.
    sums, shared = (JOB.read(f, f.job, name) for name in ("sums", "inner"))
    sums_of = {"output": sums, "down": sums + f.rows * hidden * 4}
    x, stride = JOB.read(f, f.job, "x") + f.row * hidden * 4, hidden * 4
    codes_stride, inner_stride = bytes_of_codes(hidden), bytes_of_codes(inner)

    def first_panel(name: str) -> Value | int:
        return THREAD.read(f, f.thread, f"first_{_COLUMNS[name]}") if by_columns else 0

    def weights(name: str) -> Value:
        return weights_of(f, record[name], first_panel(name))

    following = {name: weights(after) for name, after in _READ_NEXT.items()}
    following["down"] = f.following

    def linear(
        kernel: str,
        name: str,
        source: tuple[Value, Value],
        out: tuple[Value, Value],
        *,
        extra: Value | None = None,
        element: int = 4,
        rows: Value = f.rows,
        row_scales: Value = scales,
        after: Value | None = None,
    ) -> None:
        if by_columns:
            panels = THREAD.read(f, f.thread, f"own_{_COLUMNS[name]}")
        else:
            panels = LINEAR.read(f, record[name], "panels")
        first = first_panel(name)
        f.call(
            kernel,
            linear=record[name],
            first=first,
            panels=panels,
            codes=source[0],
            code_stride=source[1],
            rows=rows,
            out=out[0] + first * (PANEL * element) if isinstance(first, Value) else out[0],
            out_stride=out[1],
            row_scales=row_scales,
            extra=f.constant(PTR, 0) if extra is None else extra,
            following=following[name] if after is None else after,
        )

    def add(name: str, source: tuple[Value, Value], rounding: Value) -> None:
        """Write a linear layer and its residual add."""
        if not by_columns:
            kernel = "linear_add_rounded" if features.rounds_adds else "linear_add"
            linear(kernel, name, source, (x, stride), extra=rounding)
            return
        linear("linear_float", name, source, (sums_of[name], stride))
        f.call("wait", f.job)
        if features.rounds_adds:
            f.call("add_rounded_rows", rounding, x, sums_of[name], hidden, f.rows)
        else:
            f.call("add_rows", x, sums_of[name], f.rows * hidden)

    context = (f.context, width)
    if dynamic:
        context = (inner_codes, bytes_of_codes(width))
        out = (f.rows, *context, scales)
        f.call("quantize_rows", record["context_codes"], f.context, width * 4, width, *out)
    if features.adds_twice:
        keep(f, x, hidden, f.rows)
    add("output", context, record["attention_add"])
    states = (x, stride, hidden, f.rows, codes, codes_stride, scales)
    normalize_attention(f, features, record, *states)
    if dynamic or features.gated:
        columns = inner * 2 if features.gated else inner
        kernel = "linear_float" if features.gated else f"linear_{features.activation}"
        if by_columns:
            linear(kernel, "up", (codes, codes_stride), (shared, columns * 4))
            f.call("wait", f.job)
        with f.loop(0, f.rows, INNER_BLOCK) as row:
            count = (f.rows - row).minimum(INNER_BLOCK)
            place, buffer = scales + row * ROW_SCALE, THREAD.read(f, f.thread, "inner_float")
            if by_columns:
                floats = shared + row * columns * 4
            else:
                floats = buffer
                linear(
                    kernel,
                    "up",
                    (codes + row * codes_stride, codes_stride),
                    (floats, columns * 4),
                    rows=count,
                    row_scales=place,
                    after=(row + count < f.rows).select(weights("up"), weights("down")),
                )
            if features.gated:
                f.call("gate_rows", floats, columns * 4, count, inner, buffer, columns * 4)
                floats = buffer
            out = (count, inner_codes + row * inner_stride, inner_stride, place)
            f.call("quantize_rows", record["down_codes"], floats, columns * 4, inner, *out)
    else:
        inner_codes = shared if by_columns else inner_codes
        kernel, target = f"linear_codes_{features.activation}", (inner_codes, inner_stride)
        source, extra = (codes, codes_stride), record["down_codes"]
        linear(kernel, "up", source, target, extra=extra, element=1)
        if by_columns:
            f.call("wait", f.job)
    add("down", (inner_codes, inner_stride), record["add"])
    f.call("end_layer", **f.own("model", "layer", "job", "thread", "reader", "row", "rows"))


def weights_after_attention(f: Function, panel: Value | int = 0) -> Value:
    """Return the address of the weights of `f.layer` that are read first after attention."""
    return weights_of(f, LAYER.read(f, f.layer, "output"), panel)


def _emit_add_rows(module: Module, lanes: int) -> None:
    """Write `add_rows`, which adds some float32 to as many others, a multiple of 64."""
    floats = vector(F32, lanes)
    with (
        module.function("add_rows", x=PTR, other=PTR, count=I64) as f,
        f.loop(0, f.count, lanes) as each,
    ):
        place = f.x + each * 4
        f.store(f.load(floats, place) + f.load(floats, f.other + each * 4), place)
