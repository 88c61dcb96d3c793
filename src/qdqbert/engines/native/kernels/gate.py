"""The product of an activation and a gate, in feed-forward parts that have one."""

from __future__ import annotations

from qdqbert.engines.native.functions import ACTIVATIONS, EXACT_ACTIVATIONS
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, Module, vector


def emit_gate(module: Module, isa: InstructionSet, activation: str, *, floats: bool) -> None:
    """Write `gate_rows`, which multiplies the activation of one half of each row by the other half.

    Its arguments are the first row of float32 and the bytes from one row to the next, the number of
    rows, the channels of a half, a multiple of 16, and the first row of the result and the bytes
    from one row to the next. The result may overwrite the first half.
    """
    function = (EXACT_ACTIVATIONS if floats else ACTIVATIONS)[activation]
    type = vector(F32, isa.lanes)
    with (
        module.function("gate_rows", "x*, stride, rows, channels, out*, out_stride") as f,
        f.loop(0, f.rows) as row,
        f.loop(0, f.channels, isa.lanes) as channel,
    ):
        x = f.x + (row * f.stride + channel * 4)
        value = function(f, f.load(type, x))
        gate = f.load(type, x + f.channels * 4)
        f.store(value * gate, f.out + (row * f.out_stride + channel * 4))
