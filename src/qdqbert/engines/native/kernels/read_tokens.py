"""The states of one token of each text, if nobody reads the others after the last layer.

It is the first or the last one. Its rows are moved together, so that the kernels of rows compute
them, and back to their places.
"""

from __future__ import annotations

from qdqbert.engines.native.ir import I8, I64, Function, Module, Value, vector
from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.records import JOB

_BYTES = vector(I8, LINE)


def emit_read_tokens(module: Module) -> None:
    """Write `gather_read`, which moves rows of tokens together, and `return_read`.

    Their arguments are the row of the first text's token, the bytes of a row, a multiple of 64, the
    index of this token and of those of the texts after it, int64, and the number of texts.
    """
    for name in ("gather_read", "return_read"):
        with module.function(name, "x*, stride, tokens*, texts") as f, f.loop(0, f.texts) as each:
            # Rows move towards the first one, and away from it in reverse order, so that none is
            # overwritten before it has moved.
            is_back = name == "return_read"
            text = f.texts - each - 1 if is_back else each
            apart = f.load(I64, f.tokens + text * 8) - f.load(I64, f.tokens)
            source, target = f.x + apart * f.stride, f.x + text * f.stride
            if is_back:
                source, target = target, source
            with f.loop(0, f.stride, LINE) as byte:
                f.store(f.load(_BYTES, source + byte), target + byte)


def reads_one(f: Function, reader: Value) -> Value:
    """Return whether a layer computes one token of each text, given the layer that reads it."""
    return reader.equals(0) & JOB.read(f.job, "tokens_read").differs(0)


def token_read(f: Function, text: Value) -> Value:
    """Return the address of the index of the token of a text that is read, if only one is."""
    return JOB.read(f.job, "tokens_read") + text * 8
