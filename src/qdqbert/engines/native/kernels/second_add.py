"""States that are added a second time, after the LayerNorm of a residual add."""

from __future__ import annotations

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, Function, Module, Value, vector
from qdqbert.engines.native.records import THREAD


def emit_second_add(module: Module, isa: InstructionSet) -> None:
    """Write `keep_rows`, which copies float32, and `add_kept_rows`, which adds them to others.

    Their arguments are the first number of the copy and of the others, and how many there are, a
    multiple of 64.
    """
    floats = vector(F32, isa.lanes)
    for name in ("keep_rows", "add_kept_rows"):
        with (
            module.function(name, "kept*, x*, count") as f,
            f.loop(0, f.count, isa.lanes) as each,
        ):
            kept, x = f.kept + each * 4, f.x + each * 4
            if name == "keep_rows":
                f.store(f.load(floats, x), kept)
            else:
                f.store(f.load(floats, x) + f.load(floats, kept), x)


def keep(f: Function, x: Value, hidden: Value, rows: Value) -> None:
    """Write the copy of states before an attention is added to them."""
    f.call("keep_rows", THREAD.read(f.thread, "kept"), x, rows * hidden)


def add_again(f: Function, x: Value, hidden: Value, rows: Value) -> None:
    """Write the second add of states."""
    f.call("add_kept_rows", THREAD.read(f.thread, "kept"), x, rows * hidden)
