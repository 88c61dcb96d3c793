"""Cut off the unknown nodes behind the last hidden states, as a graph of their own."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import TAIL_STATES, Tail
from qdqbert.graph.edit import add_constant
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView

# Operators that may contain the sizes of a graph with fixed shapes.
_WITH_SIZES = ("Reshape", "Expand", "ConstantOfShape", "Tile", "Slice")


def read_tail(
    view: GraphView, states: ir.Value, outputs: Collection[ir.Value], known: Collection[ir.Value]
) -> Tail | None:
    """Return the tail between the last hidden states and the outputs.

    Args:
        view: The graph.
        states: The last hidden states.
        outputs: The outputs. Those that are computed from inner states are left out.
        known: Outputs that are known, which other outputs may be computed from.

    Returns:
        The part; `None` if no output is left.
    """
    ends = {states, *known}
    inner = view.ends.intersection(view.before(states)) - ends
    kept: list[ir.Value] = []
    read: set[ir.Value] = set()
    for output in outputs:
        between = view.before(output, ends)
        if inner.isdisjoint(between):
            kept.append(output)
            read.update(between)
    if not kept:
        return None
    sources = [each for each in (*view.graph.inputs, states, *known) if each in read]
    part = ir.convenience.extract(view.graph, sources, kept)
    _free_sizes(part)
    if states in read:
        _rename_states(part, part.inputs[sources.index(states)], view.shape(states))
    model = ir.Model(part, ir_version=view.ir_version)
    return Tail(
        graph=ir.to_proto(model).SerializeToString(),
        inputs=tuple(str(each.name) for each in part.inputs),
        outputs=tuple(str(each.name) for each in part.outputs),
    )


def _free_sizes(part: ir.Graph) -> None:
    """Make the sizes of inputs dynamic that a graph fixes.

    Raises:
        GraphError: A node contains such a size.
    """
    fixed = [each for each in part.inputs if each.shape and isinstance(each.shape[0], int)]
    if not fixed:
        return
    for node in part:
        if node.op_type in _WITH_SIZES:
            raise refuse(node, "contains the fixed shape of the inputs")
    for value in (*part.inputs, *(each for node in part for each in node.outputs)):
        value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))


def _rename_states(part: ir.Graph, states: ir.Value, shape: tuple[int, ...]) -> None:
    """Name the states `TAIL_STATES`, and set their shape `(batch, seq, hidden)`.

    Args:
        part: The graph.
        states: The input that is the states.
        shape: Its shape. Some exporters keep states as `(batch * seq, hidden)`.
    """
    if len(shape) == 3:
        states.name = TAIL_STATES
        return
    given = ir.val(TAIL_STATES, dtype=ir.DataType.FLOAT, shape=["batch", "sequence", None])
    sizes = add_constant(part, f"{TAIL_STATES}.shape", np.array([-1, shape[-1]]))
    flat = ir.node("Reshape", [given, sizes], name=f"{TAIL_STATES}.flat")
    states.replace_all_uses_with(flat.outputs[0])
    part.inputs[list(part.inputs).index(states)] = given
    part.insert_before(part[0], flat)
