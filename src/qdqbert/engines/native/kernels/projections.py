"""Queries, keys and values of hidden states, in float32."""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.ir import I64, PTR, Function, Module, Value
from qdqbert.engines.native.kernels.dot import PANEL, bytes_of_codes
from qdqbert.engines.native.kernels.norm import quantize_input
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import CODES, JOB, LAYER, LINEAR, MODEL, ROW_SCALE, THREAD

# Queries and keys, not values, are normalized and rotated.
_CHANGED = 2


def emit_projections(module: Module, features: Features) -> None:
    """Write `quantize_states` and `project`: hidden states to queries, keys and values.

    `quantize_states` writes the codes of some rows. `project` computes some heads from these codes.
    Its arguments are the records, the first row of codes and the number of rows, the first head and
    the number of heads, the positions of the rows, where the results start, the bytes from one of
    their rows to the next, and the weights that are read after these.
    """
    with module.function("quantize_states", model=PTR, layer=PTR, thread=PTR, x=PTR, rows=I64) as f:
        hidden = MODEL.read(f, f.model, "hidden")
        inputs = LAYER.read(f, f.layer, "projection_codes")
        codes, scales = (THREAD.read(f, f.thread, name) for name in ("codes", "row_scales"))
        copy, last = _copies(f)
        with f.loop(0, last + 1) as index:
            own = inputs + index * CODES.size
            stride = bytes_of_codes(hidden)
            place = codes + index * copy * stride
            own_scales = scales + index * copy * ROW_SCALE
            norm = LAYER.read(f, f.layer, "attention_input_norm")
            rows = (f.x, hidden * 4, hidden, f.rows, place, stride, own_scales)
            quantize_input(f, features, norm, own, *rows)
    with module.function(
        "project",
        model=PTR,
        layer=PTR,
        thread=PTR,
        row=I64,
        rows=I64,
        head=I64,
        heads=I64,
        positions=PTR,
        queries=PTR,
        keys=PTR,
        values=PTR,
        stride=I64,
        following=PTR,
    ) as f:
        hidden, size = (MODEL.read(f, f.model, name) for name in ("hidden", "head_size"))
        codes, scales = (THREAD.read(f, f.thread, name) for name in ("codes", "row_scales"))
        linears, stride = LAYER.read(f, f.layer, "projections"), bytes_of_codes(hidden)
        copy, last = _copies(f)
        first = f.head * size // PANEL
        keys, values = (weights_of(f, linears + number * LINEAR.size, first) for number in (1, 2))
        places = (f.queries, f.keys, f.values)
        for number, (out, following) in enumerate(
            zip(places, (keys, values, f.following), strict=True)
        ):
            row = f.row + copy * f.constant(I64, number).minimum(last)
            f.call(
                "linear_float",
                linear=linears + number * LINEAR.size,
                first=first,
                panels=f.heads * size // PANEL,
                codes=codes + row * stride,
                code_stride=stride,
                rows=f.rows,
                out=out,
                out_stride=f.stride,
                row_scales=scales + row * ROW_SCALE,
                extra=f.layer,
                following=following,
            )
            if features.normalizes_heads and number < _CHANGED:
                # Callers pass all heads then.
                norm = LAYER.read(f, f.layer, ("query_norm", "key_norm")[number])
                f.call("layer_norm", norm, out, f.stride, f.rows)
            if features.rotary and number < _CHANGED:
                table = LAYER.read(f, f.layer, "rotation")
                heads = (out, f.stride, f.rows, f.heads, size)
                f.call("rotate_rows", *heads, f.positions, table)
            if features.rounds_attention:
                record = f.load(PTR, LAYER.read(f, f.layer, "roundings") + 8 * number)
                columns = f.heads * size
                f.call("round_rows", record, f.head * size, out, f.stride, columns, f.rows)


def _copies(f: Function) -> tuple[Value, Value]:
    """Return the row stride between the codes of projections, and the last index of the codes."""
    shares_codes = LAYER.read(f, f.layer, "shares_codes").differs(0)
    return THREAD.read(f, f.thread, "code_rows"), shares_codes.select(f.constant(I64, 0), 2)


def project_all(
    f: Function,
    layer: Value,
    row: Value,
    rows: Value,
    head: Value,
    heads: Value,
    following: Value,
) -> None:
    """Write the projection of some rows and heads to the buffers of a job.

    Args:
        f: The function.
        layer: The `LAYER` record.
        row: The first row.
        rows: Number of rows.
        head: The first head.
        heads: Number of heads.
        following: The weights that are read after those of these heads.
    """
    hidden, width, size = (
        MODEL.read(f, f.model, name) for name in ("hidden", "width", "head_size")
    )
    x = JOB.read(f, f.job, "x") + row * hidden * 4
    f.call("quantize_states", f.model, layer, f.thread, x, rows)
    offset = (row * width + head * size) * 4
    places = {name: JOB.read(f, f.job, name) + offset for name in ("queries", "keys", "values")}
    f.call(
        "project",
        **f.own("model", "thread"),
        layer=layer,
        row=0,
        rows=rows,
        head=head,
        heads=heads,
        positions=JOB.read(f, f.job, "positions") + row * 4,
        **places,
        stride=width * 4,
        following=following,
    )
