"""Read self-attention: from its output layer back to the states that query, key and value read."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Attention, Linear
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.linear_layers import LinearNodes
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.scores import ScoreNodes, read_scores
from qdqbert.graph.encoder.view import GraphView, numbered


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadNodes:
    """Query, key or value.

    Attributes:
        linear: The linear layer, its outputs in the order of the heads.
        source: The states that it reads.
        heads: Number of heads.
        width: Size of a head.
        factor: Factor of its output.
        value: Input of a matmul: `(batch, heads, tokens, width)`, or with the last two axes
            swapped.
        tokens_axis: Which axis of it runs over tokens.
        end: The output of the linear layer.
        columns: The outputs of the linear layer in the order of the heads.
        is_rotated: Whether it depends on the positions of tokens, except for the first one.
    """

    linear: Linear
    source: ir.Value
    heads: int
    width: int
    factor: float
    value: ir.Value
    tokens_axis: int
    end: ir.Value
    columns: NDArray[np.int64]
    is_rotated: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionNodes:
    """An attention that was read.

    Attributes:
        attention: Its parts, without positions of tokens.
        source: The states that it reads.
        scores: The input of its Softmax, which may depend on distances.
        query, key: The queries and keys, which may be rotated.
    """

    attention: Attention
    source: ir.Value
    scores: ScoreNodes
    query: HeadNodes
    key: HeadNodes


def read_attention(view: GraphView, output: LinearNodes) -> AttentionNodes:
    """Read an attention.

    Args:
        view: The graph.
        output: The linear layer that reads the heads' contexts.

    Raises:
        GraphError: It has another form.
    """
    merged = view.source(output.source, "the context")
    context = producer_of(merged, "MatMul")
    if context is None or merged in view.linear_layers:
        raise refuse(merged.producer(), "is where the matmul of probabilities and values should be")
    value = _read_projection(view, context, 1, tokens_axis=2)
    if value.factor != 1 or value.is_rotated:
        raise refuse(context, "reads values that are multiplied by a factor")
    softmax = _probabilities(view, context)
    scores = read_scores(view, softmax)
    query = _read_projection(view, scores.matmul, 0, tokens_axis=2)
    key = _read_projection(view, scores.matmul, 1, tokens_axis=3)
    for part in (key, value):
        if (part.heads, part.width) != (query.heads, query.width):
            raise refuse(scores.matmul, "has heads of different sizes, or shares keys or values")
        if part.source is not query.source:
            raise refuse(
                part.source.producer(), "is read by keys or values, but not by their queries"
            )
    texts, tokens = view.probe.ids.shape
    x = numbered((texts, query.heads, tokens, query.width))
    expected = x.transpose(0, 2, 1, 3).ravel()
    if not np.array_equal(view.evaluate(output.source, {merged: x}).ravel(), expected):
        raise refuse(output.source.producer(), "does not put the contexts of the heads together")
    view.mark_read(context, softmax, scores.matmul)
    projections = {"query": query, "key": key, "value": value}
    is_one = query.end is key.end is value.end
    linears = [
        dataclasses.replace(
            each.linear,
            module=f"attention.self.{'qkv' if is_one else name}",
            first=place * query.heads * query.width if is_one else 0,
        )
        for place, (name, each) in enumerate(projections.items())
    ]
    attention = Attention(
        query=linears[0],
        key=linears[1],
        value=linears[2],
        output=dataclasses.replace(output.linear, module="attention.output.dense"),
        heads=query.heads,
        scale=scores.factor * query.factor * key.factor,
        causal=scores.is_causal,
    )
    return AttentionNodes(
        attention=attention, source=query.source, scores=scores.nodes, query=query, key=key
    )


def _probabilities(view: GraphView, context: ir.Node) -> ir.Node:
    """Return the Softmax in front of a context's matmul."""
    first = context.inputs[0]
    assert first is not None
    end = view.source(first, "the probabilities")
    softmax = producer_of(end, "Softmax")
    if softmax is None or softmax.attributes.get_int("axis", -1) not in (-1, 3):
        raise refuse(end.producer(), "is where a Softmax over keys should be")
    texts, tokens = view.probe.ids.shape
    x = numbered((texts, 1, tokens, tokens)) / (texts * tokens * tokens)
    if not np.array_equal(view.evaluate(first, {end: x}), x):
        raise refuse(first.producer(), "changes the probabilities")
    return softmax


def _read_projection(
    view: GraphView, matmul: ir.Node, index: int, *, tokens_axis: int
) -> HeadNodes:
    """Read an input of one of the two matmuls.

    Args:
        view: The graph.
        matmul: The matmul.
        index: Index of the input.
        tokens_axis: Which axis of the input runs over tokens: 2, or 3 if it is transposed.
    """
    value = matmul.inputs[index]
    assert value is not None
    end = view.source(value, f"input {index} of {matmul.name!r}")
    if end not in view.linear_layers:
        raise refuse(end.producer(), "is where a linear layer of query, key or value should be")
    found = view.linear(end)
    texts, tokens = view.probe.ids.shape
    shape = view.shape(end)
    ones, numbers = (
        view.evaluate(value, {end: x}) for x in (np.ones(shape, np.float32), numbered(shape))
    )
    if ones.ndim == 3 and len(ones) % texts == 0:
        # The first axis has all heads of all texts.
        ones, numbers = (x.reshape(texts, -1, *x.shape[1:]) for x in (ones, numbers))
    if ones.ndim != 4 or ones.shape[0] != texts or ones.shape[tokens_axis] != tokens:
        raise refuse(matmul, "does not multiply tensors (batch, heads, tokens, width)")
    factor = float(ones.flat[0])
    # A rotation leaves the first token of a text as it is.
    is_rotated = bool((ones != factor).any())
    kept = 1 if is_rotated else tokens
    ones, numbers = (np.moveaxis(x, tokens_axis, 2)[:, :, :kept] for x in (ones, numbers))
    if (ones != factor).any() or not factor > 0:
        raise refuse(value.producer(), "computes heads that are not outputs of a linear layer")
    places = np.rint(numbers.astype(np.float64) / factor).astype(np.int64)
    rows, columns = np.divmod(places, len(found.linear.weight))
    expected = np.arange(texts * tokens).reshape(texts, 1, tokens, 1)[:, :, :kept]
    if (rows != expected).any() or (columns != columns[:1, :, :1]).any():
        raise refuse(value.producer(), "does not split the outputs of a linear layer into heads")
    ordered = columns[0, :, 0].ravel()
    return HeadNodes(
        linear=take_outputs(found.linear, ordered),
        source=view.state(found.source, "the states that an attention reads"),
        heads=places.shape[1],
        width=places.shape[3],
        factor=factor,
        value=value,
        tokens_axis=tokens_axis,
        end=end,
        columns=ordered,
        is_rotated=is_rotated,
    )


def take_outputs(linear: Linear, columns: NDArray[np.int64]) -> Linear:
    """Return a linear layer with only some of the outputs, in this order."""
    if np.array_equal(columns, np.arange(len(linear.weight))):
        return linear
    return dataclasses.replace(linear, weight=linear.weight[columns], bias=linear.bias[columns])
