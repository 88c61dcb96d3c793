"""Read what follows the last hidden states: heads, and a graph of what is not known."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from qdqbert.common.errors import GraphError
from qdqbert.encoders.model import TAIL_STATES, Head, HeadOutput, Step, Tail
from qdqbert.graphs.edit import add_constant
from qdqbert.graphs.encoder.functions import match_column, match_pooling, match_rows, sample
from qdqbert.graphs.encoder.layers import ends_layer
from qdqbert.graphs.encoder.refusal import refuse
from qdqbert.graphs.encoder.view import GraphView

# Operators that may contain the sizes of a graph with fixed shapes.
_WITH_SIZES = ("Reshape", "Expand", "ConstantOfShape", "Tile", "Slice")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOutputs:
    """What computes the outputs of a graph.

    Attributes:
        states: The last hidden states.
        heads: Heads that are known. Outputs with the same steps share a head.
        tail: The other nodes behind the states, if there are some.
        dropped: Names of the outputs that are left out, since they are computed from inner states.
    """

    states: ir.Value
    heads: tuple[Head, ...]
    tail: Tail | None
    dropped: tuple[str, ...]


def read_outputs(view: GraphView, wanted: Collection[str]) -> ReadOutputs:
    """Read heads, from each output back to the last hidden states. Wanted outputs are not left out.

    Raises:
        GraphError: The graph has no encoder layer, or an output has to be left out.
    """
    values = [value for node in view.graph for value in node.outputs]
    states = next((each for each in reversed(values) if ends_layer(view, each)), None)
    if states is None:
        raise refuse(None, "has no residual add after an attention")
    heads: dict[tuple[object, ...], Head] = {}
    unknown: dict[ir.Value, GraphError] = {}
    for value in view.graph.outputs:
        try:
            key, head = _read_output(view, value, states)
        except GraphError as error:
            unknown[value] = error
        else:
            known = heads[key].outputs if key in heads else ()
            heads[key] = dataclasses.replace(head, outputs=(*known, *head.outputs))
    # The states may be an output.
    ends = list(dict.fromkeys([states, *(x for x in view.graph.outputs if x not in unknown)]))
    inner = view.ends.intersection(view.before(states)) - set(ends)
    kept = [each for each in unknown if inner.isdisjoint(view.before(each, ends))]
    dropped = {str(each.name): error for each, error in unknown.items() if each not in kept}
    for name in dropped.keys() & set(wanted):
        raise dropped[name]
    return ReadOutputs(
        states=states,
        heads=tuple(heads.values()),
        tail=_cut_off(view, ends, kept) if kept else None,
        dropped=tuple(dropped),
    )


def _read_output(
    view: GraphView, output: ir.Value, states: ir.Value
) -> tuple[tuple[object, ...], Head]:
    """Read the head of an output.

    Returns:
        What outputs of the same head have in common, and a head with this output alone.
    """
    steps: list[Step] = []
    # The steps, with values of the graph instead of linear layers and LayerNorms.
    names: list[object] = []
    column: int | None = None
    shape: tuple[int, ...] = ()
    value = output
    while True:
        end = view.source(value, f"output `{output.name}`")
        x = sample(view.shape(end))
        y = view.evaluate(value, {end: x})
        if value is output:
            shape = y.shape
        if ends_layer(view, end):
            break
        if value is output and shape != x.shape:
            column = match_column(x, y)
        rows = () if column is not None and value is output else match_rows(x, y)
        if rows is None:
            raise _unknown(value, output)
        step, value = _read_part(view, end)
        steps += [*reversed(rows), step]
        names += [*reversed(rows), end]
    pooled = match_pooling(x, y, view.probe.is_text)
    if pooled is None:
        raise _unknown(value, output)
    tokens = view.probe.ids.shape[1:] if pooled[0] == "none" else ()
    if (shape if column is not None else shape[:-1]) != (*view.probe.batch, *tokens):
        raise refuse(output.producer(), f"gives output `{output.name}` another shape")
    if end is not states:
        raise refuse(end.producer(), f"gives output `{output.name}`, and is not the last layer")
    head = Head(
        poolings=(pooled[0],),
        steps=(*pooled[1], *reversed(steps)),
        outputs=(HeadOutput(name=str(output.name), column=column),),
    )
    return (*pooled, *names), head


def _read_part(view: GraphView, end: ir.Value) -> tuple[Step, ir.Value]:
    """Return the linear layer or LayerNorm with a value as its output, and its input."""
    if end in view.linear_layers:
        return view.linear(end)
    node = end.producer()
    if node is None or node.op_type != "LayerNormalization":
        raise refuse(node, "is not a part of a head that the engine has")
    return view.norm(node)


def _unknown(value: ir.Value, output: ir.Value) -> GraphError:
    return refuse(
        value.producer(),
        f"ends a computation of output `{output.name}` that is no pooling, activation function or "
        "normalization",
    )


def _cut_off(view: GraphView, ends: list[ir.Value], outputs: list[ir.Value]) -> Tail:
    """Cut off what computes outputs, as a graph of its own.

    It starts from the inputs and from `ends`: the last hidden states, and other outputs.

    Raises:
        GraphError: It contains a fixed shape of the inputs.
    """
    read = {each for output in outputs for each in view.before(output, ends)}
    sources = [each for each in (*view.graph.inputs, *ends) if each in read]
    part = ir.convenience.extract(view.graph, sources, outputs)
    _free_sizes(part)
    if ends[0] in read:
        _rename_states(part, part.inputs[sources.index(ends[0])], view.shape(ends[0]))
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

    Some exporters keep states in the shape `(batch * seq, hidden)`.
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
