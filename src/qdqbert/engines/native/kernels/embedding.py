"""Rows of the embedding tables: summed, normalized, and projected if they are narrow."""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I8, I32, I64, Function, Module, Value, vector
from qdqbert.engines.native.records import JOB, MODEL, THREAD


def emit_embedding(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `embed`, which needs `float_linear` and fills rows of hidden states.

    Its arguments are a `MODEL`, a `JOB` and a `THREAD` record, the first row and the number of
    rows, at most a block.
    """
    with module.function("embed", "model*, job*, thread*, row, rows") as f:
        hidden, width = MODEL.each(f.model, "hidden", "embedding_width")
        x = JOB.read(f.job, "x") + f.row * hidden * 4
        projection = MODEL.read(f.model, "projection")
        is_projected = projection.differs(0)
        out = is_projected.select(THREAD.read(f.thread, "embedded"), x)
        with f.loop(0, f.rows) as row:
            _sum_rows(f, isa.lanes, features, f.row + row, out + row * width * 4)
        norm = MODEL.read(f.model, "embedding_norm")
        with f.when(norm.differs(0)):
            f.call("layer_norm", norm, out, width * 4, f.rows)
        with f.when(is_projected):
            f.call("float_linear", projection, out, width * 4, f.rows, x, hidden * 4)


def _sum_rows(f: Function, lanes: int, features: Features, token: Value, out: Value) -> None:
    """Write the sum of the rows of a token: of the words, and of the other tables."""
    tables = ("positions", "token_types") if features.positions else ("token_types",)
    floats = vector(F32, lanes)
    width = MODEL.read(f.model, "embedding_width")
    word = _index(f, "ids", token) * width
    others = [MODEL.read(f.model, name) + _index(f, name, token) * width * 4 for name in tables]
    scale = MODEL.read(f.model, "word_scale")
    words = MODEL.read(f.model, "words")
    is_int8 = scale.differs(0)

    if features.drops_words:
        factor = f.splat(f.load(F32, JOB.read(f.job, "word_factors") + token * 4), lanes)

    def store(channel: Value, values: Value) -> None:
        if features.drops_words:
            values = values * factor
        for each in others:
            values = values + f.load(floats, each + channel * 4)
        f.store(values, out + channel * 4)

    with f.when(is_int8), f.loop(0, width, lanes) as channel:
        codes = f.load(vector(I8, lanes), words + (word + channel))
        values = codes.cast("sext", vector(I32, lanes)).cast("sitofp", floats)
        store(channel, values * f.load(floats, scale + channel * 4))
    with f.when(is_int8 ^ 1), f.loop(0, width, lanes) as channel:
        store(channel, f.load(floats, words + (word + channel) * 4))


def _index(f: Function, name: str, token: Value) -> Value:
    """Return the row of a table that a token reads."""
    place = JOB.read(f.job, name) + token * 4
    return f.load(I32, place).cast("sext", I64)
