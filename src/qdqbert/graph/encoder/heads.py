"""Read heads, from each output back to the last hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from qdqbert.encoders.model import Head, HeadOutput, Linear, Norm, Pooling
from qdqbert.errors import GraphError
from qdqbert.graph.encoder.functions import (
    RowFunction,
    match_column,
    match_pooling,
    match_rows,
    sample,
)
from qdqbert.graph.encoder.layers import ends_layer
from qdqbert.graph.encoder.norms import read_norm
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.view import GraphView

Step = Linear | Norm | RowFunction


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OutputNodes:
    """The nodes between the last hidden states and an output.

    Attributes:
        states: The last hidden states.
        pooling: Which rows of them are read.
        steps: Operations on each row, in order.
        parts: The outputs of the linear layers and LayerNorms among the steps.
        output: The output.
    """

    states: ir.Value
    pooling: Pooling
    steps: tuple[Step, ...]
    parts: tuple[ir.Value, ...]
    output: HeadOutput


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
    states = _last_states(view)
    heads: dict[tuple[object, ...], Head] = {}
    unknown: dict[ir.Value, GraphError] = {}
    for value in view.graph.outputs:
        try:
            found = _read_output(view, value)
        except GraphError as error:
            unknown[value] = error
            continue
        if found.states is not states:
            unknown[value] = refuse(
                found.states.producer(), f"gives output `{value.name}`, and is not the last layer"
            )
            continue
        kinds = tuple(step if isinstance(step, str) else "part" for step in found.steps)
        key = (found.pooling, found.parts, kinds)
        outputs = (*heads[key].outputs, found.output) if key in heads else (found.output,)
        heads[key] = Head(pooling=found.pooling, steps=found.steps, outputs=outputs)
    return ReadHeads(heads=tuple(heads.values()), states=states, unknown=unknown)


def _last_states(view: GraphView) -> ir.Value:
    """Return the output of the last encoder layer, or of a LayerNorm after it."""
    values = [value for node in view.graph for value in node.outputs]
    last = next((each for each in reversed(values) if ends_layer(view, each)), None)
    if last is None:
        raise refuse(None, "has no residual add after an attention")
    return last


def _read_output(view: GraphView, output: ir.Value) -> _OutputNodes:
    steps: list[Step] = []
    parts: list[ir.Value] = []
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
        parts.append(end)
    pooled = match_pooling(x, y, view.probe.is_text)
    if pooled is None:
        raise _unknown(value, output)
    _check_shape(view, output, shape if column is not None else shape[:-1], pooled[0])
    return _OutputNodes(
        states=end,
        pooling=pooled[0],
        steps=(*pooled[1], *reversed(steps)),
        parts=tuple(parts),
        output=HeadOutput(name=str(output.name), column=column),
    )


def _check_shape(
    view: GraphView, output: ir.Value, rows: tuple[int, ...], pooling: Pooling
) -> None:
    """Check that an output has one row for each text, or for each token."""
    tokens = view.probe.ids.shape[1:] if pooling == "none" else ()
    texts = next(iter(view.probe.inputs.values())).shape[:-1]
    if rows != (*texts, *tokens):
        raise refuse(output.producer(), f"gives output `{output.name}` another shape")


def _read_part(view: GraphView, end: ir.Value) -> tuple[Step, ir.Value]:
    """Return the linear layer or LayerNorm with a value as its output, and its input."""
    if end in view.linear_layers:
        linear = view.linear(end)
        return linear.linear, linear.source
    node = end.producer()
    if node is None or node.op_type != "LayerNormalization":
        raise refuse(node, "is not a part of a head that the engine has")
    return read_norm(view, node)


def _unknown(value: ir.Value, output: ir.Value) -> GraphError:
    return refuse(
        value.producer(),
        f"ends a computation of output `{output.name}` that is no pooling, activation function or "
        "normalization",
    )
