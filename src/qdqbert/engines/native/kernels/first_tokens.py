"""The states of first tokens alone, if nobody reads the others after the last layer.

They are moved together, so that the kernels of rows compute them, and back to their places.
"""

from __future__ import annotations

from qdqbert.engines.native.ir import I8, I64, Function, Module, Value, vector
from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.records import JOB, MODEL

_BYTES = vector(I8, LINE)


def emit_first_tokens(module: Module) -> None:
    """Write `gather_first`, which moves rows of first tokens together, and `return_first`.

    Their arguments are the first row of the first text, the bytes of a row, a multiple of 64, the
    index of the first token of this text and of those after it, int64, and the number of texts.
    """
    for name in ("gather_first", "return_first"):
        with (
            module.function(name, "x*, stride, starts*, texts") as f,
            f.loop(0, f.texts) as each,
        ):
            # Rows move towards the first one, and away from it in reverse order, so that none is
            # overwritten before it has moved.
            is_back = name == "return_first"
            text = f.texts - each - 1 if is_back else each
            apart = f.load(I64, f.starts + text * 8) - f.load(I64, f.starts)
            source, target = f.x + apart * f.stride, f.x + text * f.stride
            if is_back:
                source, target = target, source
            with f.loop(0, f.stride, LINE) as byte:
                f.store(f.load(_BYTES, source + byte), target + byte)


def reads_first_only(f: Function, reader: Value) -> Value:
    """Return whether a layer computes first tokens only, given the layer that reads its states."""
    return reader.equals(0) & JOB.read(f.job, "first_only").equals(1)


def most_queries(f: Function, is_first: Value) -> Value:
    """Return how many tokens of a text get a context at most."""
    return is_first.select(f.constant(I64, 1), MODEL.read(f.model, "limit"))
