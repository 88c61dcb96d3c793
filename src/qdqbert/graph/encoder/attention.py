"""Read self-attention: from its output layer back to the states that query, key and value read."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Attention, Linear, Rotary
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.rotation import read_rotary
from qdqbert.graph.encoder.scores import read_scores
from qdqbert.graph.encoder.view import GraphView, numbered


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Projection:
    """Query, key or value.

    Attributes:
        linear: The linear layer, its outputs in the order of the heads.
        end: Its output in the graph.
        source: The states that it reads.
        size: Number of heads, and channels of each.
        factor: Factor of its output.
        rotary: Rotation of its output.
    """

    linear: Linear
    end: ir.Value
    source: ir.Value
    size: tuple[int, int]
    factor: float
    rotary: Rotary | None


def read_attention(
    view: GraphView, local: ir.Value, *, limit: int, path: str
) -> tuple[Attention, ir.Value]:
    """Read an attention.

    Args:
        view: The graph.
        local: Output of the linear layer that reads the heads' contexts.
        limit: Longest text in tokens.
        path: Path of its module.

    Returns:
        The attention, and the states that it reads.

    Raises:
        GraphError: It has another form.
    """
    output, contexts = view.linear(local, f"{path}.output.dense")
    merged = view.source(contexts, "the context")
    context = producer_of(merged, "MatMul")
    if context is None or merged in view.linear_layers:
        raise refuse(merged.producer(), "is where the matmul of probabilities and values should be")
    value = _read_projection(view, context, 1, tokens_axis=2, limit=limit)
    if value.factor != 1 or value.rotary is not None:
        raise refuse(context, "reads values that are multiplied by a factor")
    scores = read_scores(view, _probabilities(view, context), limit=limit)
    query, key = (
        _read_projection(view, scores.matmul, index, tokens_axis=2 + index, limit=limit)
        for index in (0, 1)
    )
    for part in (key, value):
        if part.size != query.size:
            raise refuse(scores.matmul, "has heads of different sizes, or shares keys or values")
        if part.source is not query.source:
            raise refuse(
                part.source.producer(), "is read by keys or values, but not by their queries"
            )
    if query.rotary is not key.rotary:
        raise refuse(scores.matmul, "reads keys that are rotated by other angles than queries")
    (heads, width), (texts, tokens) = query.size, view.probe.ids.shape
    x = numbered((texts, heads, tokens, width))
    expected = x.transpose(0, 2, 1, 3).ravel()
    if not np.array_equal(view.evaluate(contexts, {merged: x}).ravel(), expected):
        raise refuse(contexts.producer(), "does not put the contexts of the heads together")
    is_one = query.end is key.end is value.end
    query_layer, key_layer, value_layer = (
        dataclasses.replace(
            each.linear,
            module=f"{path}.self.{'qkv' if is_one else name}",
            first=place * heads * width if is_one else 0,
        )
        for place, (name, each) in enumerate((("query", query), ("key", key), ("value", value)))
    )
    bias = np.array(np.broadcast_to(scores.bias, (heads, scores.bias.shape[1])))
    attention = Attention(
        query=query_layer,
        key=key_layer,
        value=value_layer,
        output=output,
        heads=heads,
        scale=scores.factor * query.factor * key.factor,
        causal=scores.is_causal,
        window=scores.window,
        rotary=query.rotary,
        position_bias=bias if bias.any() else None,
    )
    return attention, query.source


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
    view: GraphView, matmul: ir.Node, index: int, *, tokens_axis: int, limit: int
) -> _Projection:
    """Read an input of one of the two matmuls.

    Args:
        view: The graph.
        matmul: The matmul.
        index: Index of the input.
        tokens_axis: Which axis of the input runs over tokens: 2, or 3 if it is transposed.
        limit: Longest text in tokens.
    """
    value = matmul.inputs[index]
    assert value is not None
    end = view.source(value, f"input {index} of {matmul.name!r}")
    if end not in view.linear_layers:
        raise refuse(end.producer(), "is where a linear layer of query, key or value should be")
    linear, source = view.linear(end)
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
    rows, columns = np.divmod(places, len(linear.weight))
    expected = np.arange(texts * tokens).reshape(texts, 1, tokens, 1)[:, :, :kept]
    if (rows != expected).any() or (columns != columns[:1, :, :1]).any():
        raise refuse(value.producer(), "does not split the outputs of a linear layer into heads")
    rotary = None
    if is_rotated:
        rotary = read_rotary(
            view,
            value,
            end,
            columns=columns[0, :, 0],
            factor=factor,
            tokens_axis=tokens_axis,
            limit=limit,
        )
    return _Projection(
        linear=take_outputs(linear, columns[0, :, 0].ravel()),
        end=end,
        source=view.state(source, "the states that an attention reads"),
        size=(places.shape[1], places.shape[3]),
        factor=factor,
        rotary=rotary,
    )


def take_outputs(linear: Linear, columns: NDArray[np.int64], *, first: int = 0) -> Linear:
    """Return a linear layer with only some of the outputs, in this order.

    Args:
        linear: The layer.
        columns: Which outputs.
        first: Index of the first of them in its module.
    """
    if np.array_equal(columns, np.arange(len(linear.weight))):
        return linear
    return dataclasses.replace(
        linear, weight=linear.weight[columns], bias=linear.bias[columns], first=first
    )
