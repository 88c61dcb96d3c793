"""Read heads, from each output back to the last hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from qdqbert.encoders.model import Head, HeadOutput, Pooling, Step
from qdqbert.errors import GraphError
from qdqbert.graph.encoder.functions import match_column, match_pooling, match_rows, sample
from qdqbert.graph.encoder.layers import ends_layer
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadHeads:
    """The heads of a graph.

    Attributes:
        heads: Those that are known. Outputs with the same steps share a head.
        states: The last hidden states.
        unknown: Why other outputs could not be read, by output.
    """

    heads: tuple[Head, ...]
    states: ir.Value
    unknown: Mapping[ir.Value, GraphError]


def read_heads(view: GraphView) -> ReadHeads:
    """Read the heads of a graph.

    Raises:
        GraphError: The graph has no encoder layer.
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
    return ReadHeads(heads=tuple(heads.values()), states=states, unknown=unknown)


def _read_output(
    view: GraphView, output: ir.Value, states: ir.Value
) -> tuple[tuple[object, ...], Head]:
    """Read the head of an output.

    Args:
        view: The graph.
        output: The output.
        states: The last hidden states.

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
    _check_shape(view, output, shape if column is not None else shape[:-1], pooled[0])
    if end is not states:
        raise refuse(end.producer(), f"gives output `{output.name}`, and is not the last layer")
    head = Head(
        poolings=(pooled[0],),
        steps=(*pooled[1], *reversed(steps)),
        outputs=(HeadOutput(name=str(output.name), column=column),),
    )
    return (*pooled, *names), head


def _check_shape(
    view: GraphView, output: ir.Value, rows: tuple[int, ...], pooling: Pooling
) -> None:
    """Check that an output has one row for each text, or for each token."""
    tokens = view.probe.ids.shape[1:] if pooling == "none" else ()
    if rows != (*view.probe.batch, *tokens):
        raise refuse(output.producer(), f"gives output `{output.name}` another shape")


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
