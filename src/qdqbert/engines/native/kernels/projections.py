"""Queries, keys and values of hidden states, in float32.

The codes that they are made of are written at the end of the layer before, where the states are in
cache, or after the embeddings.
"""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.ir import I64, PTR, Function, Module, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.norm import quantize_input
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import (
    CODES,
    JOB,
    LAYER,
    LINEAR,
    MODEL,
    RECORDS,
    ROW_SCALE,
    THREAD,
)

# Queries and keys, not values, are normalized and rotated.
_CHANGED = 2


def emit_projections(module: Module, features: Features) -> None:
    """Write `quantize_states`, `begin`, `end_layer` and `project`, which need `embed`."""
    _emit_quantize_states(module, features)
    _emit_begin(module)
    _emit_end_layer(module, features)
    _emit_project(module, features)


def _emit_quantize_states(module: Module, features: Features) -> None:
    """Write `quantize_states`.

    It writes the codes of rows of hidden states that a layer reads, from the codes of its first,
    second or third projection on.
    """
    with module.function("quantize_states", f"{RECORDS}, row, rows, first") as f:
        inputs = LAYER.read(f.layer, "projection_codes")
        with f.loop(f.first, _last_codes(f) + 1) as index:
            norm = LAYER.read(f.layer, "attention_input_norm")
            rows = (*_states(f), f.rows, *_codes(f, features, index))
            quantize_input(f, features, norm, inputs + index * CODES.size, *rows)


def _emit_begin(module: Module) -> None:
    """Write `begin`: the embeddings of some rows, and the codes that the first layer reads."""
    with module.function("begin", "model*, job*, thread*, row, rows") as f:
        own = f.own("model, job, thread, row, rows")
        with f.when(MODEL.read(f.model, "embeds").equals(1)):
            f.call("embed", **own)
        with f.when(MODEL.read(f.model, "layer_count").differs(0)):
            f.call("quantize_states", **own, layer=MODEL.read(f.model, "layers"), first=0)


def _emit_end_layer(module: Module, features: Features) -> None:
    """Write `end_layer`.

    It normalizes rows of hidden states, and writes the codes that the next layer reads, `reader`;
    that is null if there is none.
    """
    with module.function("end_layer", f"{RECORDS}, reader*, row, rows") as f:
        is_last, own = f.reader.equals(0), f.own("model, job, thread, row, rows")
        if not features.norms_first:
            norm, states = LAYER.read(f.layer, "norm"), _states(f)
            with f.when(is_last):
                f.call("layer_norm", norm, *states[:2], f.rows)
        with f.when(is_last ^ 1):
            if not features.norms_first:
                inputs = LAYER.read(f.reader, "projection_codes")
                target = _codes(f, features, f.constant(I64, 0))
                spread = THREAD.read(f.thread, "spread")
                f.call("layer_norm_codes", inputs, *states, f.rows, *target, spread, norm)
            first = f.constant(I64, 0 if features.norms_first else 1)
            f.call("quantize_states", **own, layer=f.reader, first=first)


def _emit_project(module: Module, features: Features) -> None:
    """Write `project`, which computes queries, keys and values of some heads from codes.

    Its arguments are the records, the first row and the number of rows, the first head and the
    number of heads, where the results start, the bytes from one of their rows to the next, and the
    weights that are read after these.
    """
    arguments = "row, rows, head, heads, queries*, keys*, values*, stride, following*"
    with module.function("project", f"{RECORDS}, {arguments}") as f:
        size = MODEL.read(f.model, "head_size")
        positions = JOB.read(f.job, "positions") + f.row * 4
        linears, last = LAYER.read(f.layer, "projections"), _last_codes(f)
        first = f.head * size // PANEL
        keys, values = (weights_of(linears + number * LINEAR.size, first) for number in (1, 2))
        places = (f.queries, f.keys, f.values)
        for number, (out, following) in enumerate(
            zip(places, (keys, values, f.following), strict=True)
        ):
            codes, stride, scales = _codes(f, features, f.constant(I64, number).minimum(last))
            f.call(
                "linear_float",
                linear=linears + number * LINEAR.size,
                first=first,
                panels=f.heads * size // PANEL,
                codes=codes,
                code_stride=stride,
                rows=f.rows,
                out=out,
                out_stride=f.stride,
                row_scales=scales,
                extra=f.layer,
                following=following,
            )
            if features.normalizes_heads and number < _CHANGED:
                norm = LAYER.read(f.layer, ("query_norm", "key_norm")[number])
                if features.norms_each_head:
                    f.call("norm_heads", norm, out, f.stride, f.rows, f.heads, size)
                else:
                    # Callers pass all heads then.
                    f.call("layer_norm", norm, out, f.stride, f.rows)
            if features.rotary and number < _CHANGED:
                table = LAYER.read(f.layer, "rotation")
                heads = (out, f.stride, f.rows, f.heads, size)
                f.call("rotate_rows", *heads, positions, table)
            if features.rounds_attention:
                record = f.load(PTR, LAYER.read(f.layer, "roundings") + 8 * number)
                columns = f.heads * size
                f.call("round_rows", record, f.head * size, out, f.stride, columns, f.rows)


def _last_codes(f: Function) -> Value:
    """Return the index of the last codes of a layer: 0 if its projections share them, else 2."""
    return LAYER.read(f.layer, "shares_codes").differs(0).select(f.constant(I64, 0), 2)


def _states(f: Function) -> tuple[Value, Value, Value]:
    """Return the place of the hidden states of `f.row`, the bytes of a row, and its channels."""
    hidden = MODEL.read(f.model, "hidden")
    return JOB.read(f.job, "x") + f.row * hidden * 4, hidden * 4, hidden


def _codes(f: Function, features: Features, index: Value) -> tuple[Value, Value, Value]:
    """Return the place of the codes of `f.row`, the bytes of a row, and the place of its scale."""
    codes, scales, rows = JOB.each(f.job, "codes", "row_scales", "code_rows")
    row, stride = f.row + index * rows, features.bytes_of_row(MODEL.read(f.model, "hidden"))
    return codes + row * stride, stride, scales + row * ROW_SCALE


def project_all(
    f: Function, layer: Value, row: Value, rows: Value, head: Value, heads: Value, following: Value
) -> None:
    """Write the projection of some rows and heads to the buffers of a job."""
    width, size = MODEL.each(f.model, "width", "head_size")
    offset = (row * width + head * size) * 4
    places = {name: JOB.read(f.job, name) + offset for name in ("queries", "keys", "values")}
    f.call(
        "project",
        **f.own("model, job, thread"),
        layer=layer,
        row=row,
        rows=rows,
        head=head,
        heads=heads,
        **places,
        stride=width * 4,
        following=following,
    )
