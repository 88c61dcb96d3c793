"""Read heads: what is computed from the last hidden states, from each output back to them."""

from __future__ import annotations

import dataclasses

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
    """How an output is computed from the last hidden states.

    Attributes:
        states: The last hidden states.
        pooling: Which rows of them are read.
        steps: What is done to each row, in order.
        parts: The outputs of the linear layers and LayerNorms among the steps.
        output: The output.
    """

    states: ir.Value
    pooling: Pooling
    steps: tuple[Step, ...]
    parts: tuple[ir.Value, ...]
    output: HeadOutput


def read_heads(view: GraphView) -> tuple[tuple[Head, ...], ir.Value]:
    """Read the heads of a graph.

    Returns:
        The heads, and the last hidden states. Outputs with the same steps share a head.

    Raises:
        GraphError: An output is computed in another way.
    """
    found = [_read_output(view, value) for value in view.graph.outputs]
    if not found:
        raise refuse(None, "is missing: the graph has no outputs")
    states = found[0].states
    heads: dict[tuple[object, ...], Head] = {}
    for each in found:
        if each.states is not states:
            raise refuse(
                each.states.producer(),
                f"is read by output `{each.output.name}`, but other outputs are computed from "
                "states of another layer",
            )
        kinds = tuple(step if isinstance(step, str) else "part" for step in each.steps)
        key = (each.pooling, each.parts, kinds)
        outputs = (*heads[key].outputs, each.output) if key in heads else (each.output,)
        heads[key] = Head(pooling=each.pooling, steps=each.steps, outputs=outputs)
    return tuple(heads.values()), states


def _read_output(view: GraphView, output: ir.Value) -> _OutputNodes:
    steps: list[Step] = []
    parts: list[ir.Value] = []
    column: int | None = None
    shape: tuple[int, ...] = ()
    value = output
    while True:
        end, pairs = view.source(value, f"output `{output.name}`")
        if pairs:
            raise refuse(pairs[0], "quantizes a tensor of a head outside of a linear layer")
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
    """Return the linear layer or LayerNorm that a value is the output of, and what it reads."""
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
