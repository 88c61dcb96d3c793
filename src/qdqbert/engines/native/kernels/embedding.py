"""Rows of the embedding tables, summed and normalized."""

from __future__ import annotations

from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import F32, I8, I32, I64, PTR, Function, Module, Value, vector
from qdqbert.engines.native.records import JOB, MODEL


def emit_embedding(module: Module, isa: InstructionSet) -> None:
    """Write `embed`, which fills rows of hidden states.

    Its arguments are a `MODEL` and a `JOB` record, the first row and the end of the rows.
    """
    lanes = isa.lanes
    floats = vector(F32, lanes)
    with module.function("embed", model=PTR, job=PTR, first=I64, last=I64) as f:
        hidden = MODEL.read(f, f.model, "hidden")
        scale = MODEL.read(f, f.model, "word_scale")
        tables = [MODEL.read(f, f.model, name) for name in ("positions", "token_types")]
        indices = [JOB.read(f, f.job, name) for name in ("positions", "token_types")]
        ids = JOB.read(f, f.job, "ids")
        x = JOB.read(f, f.job, "x")
        is_int8 = f.emit(I64, f"ptrtoint ptr {scale.text} to i64").differs(0)
        with f.loop(f.first, f.last) as row:
            word = _index(f, ids, row) * hidden
            out = x + row * hidden * 4
            with f.when(is_int8):
                codes = MODEL.read(f, f.model, "words") + word
                with f.loop(0, hidden, lanes) as channel:
                    code = f.load(vector(I8, lanes), codes + channel).cast(
                        "sext", vector(I32, lanes)
                    )
                    values = code.cast("sitofp", floats) * f.load(floats, scale + channel * 4)
                    f.store(values, out + channel * 4)
            with f.when(is_int8 ^ 1):
                words = MODEL.read(f, f.model, "words") + word * 4
                with f.loop(0, hidden, lanes) as channel:
                    f.store(f.load(floats, words + channel * 4), out + channel * 4)
            places = [
                table + _index(f, index, row) * hidden * 4
                for table, index in zip(tables, indices, strict=True)
            ]
            with f.loop(0, hidden, lanes) as channel:
                values = f.load(floats, out + channel * 4)
                for place in places:
                    values = values + f.load(floats, place + channel * 4)
                f.store(values, out + channel * 4)
        norm = MODEL.read(f, f.model, "embedding_norm")
        start = x + f.first * hidden * 4
        f.call("layer_norm", norm, start, hidden * 4, f.last - f.first)


def _index(f: Function, indices: Value, row: Value) -> Value:
    return f.load(I32, indices + row * 4).cast("sext", I64)
