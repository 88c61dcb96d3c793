"""Read self-attention: from its output layer back to the states that query, key and value read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import Attention, Floats, Linear, Rotary
from qdqbert.graphs.edit import producer_of
from qdqbert.graphs.encoder.probe import Array, Probe
from qdqbert.graphs.encoder.refusal import refuse
from qdqbert.graphs.encoder.view import GraphView, numbered

# A score that leaves a probability of 0.
_LOW = -1e4
# Longest text for which a mask is computed: scores of longer ones take hundreds of MB.
_LONG = 2048
# Rotations that are equal for so many tokens are equal for all.
_START = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Scores:
    """What is done to the products of queries and keys.

    Attributes:
        matmul: The matmul of queries and keys.
        is_causal: Whether a token attends only to itself and those before it.
        window: As in `Attention.window`.
        bias: Of each distance of query and key, `(heads or 1, 2 * limit - 1)`, as in
            `Attention.position_bias`. Zeros where a token does not attend.
    """

    matmul: ir.Node
    factor: float
    is_causal: bool
    window: int | None
    bias: Floats


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Projection:
    """Query, key or value.

    Attributes:
        linear: The linear layer, its outputs in the order of the heads.
        end: Its output in the graph.
        source: The states that it reads.
        size: Number of heads, and channels of each.
    """

    linear: Linear
    end: ir.Value
    source: ir.Value
    size: tuple[int, ...]
    factor: float
    rotary: Rotary | None


def read_attention(
    view: GraphView, local: ir.Value, *, limit: int, path: str
) -> tuple[Attention, ir.Value]:
    """Read an attention, whose last linear layer has the output `local`.

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
    assert context.inputs[0] is not None
    probabilities = view.source(context.inputs[0], "the probabilities")
    softmax = producer_of(probabilities, "Softmax")
    if softmax is None or softmax.attributes.get_int("axis", -1) not in (-1, 3):
        raise refuse(probabilities.producer(), "is where a Softmax over keys should be")
    scores = _read_scores(view, softmax, limit=limit)
    query, key, value = (
        _read_projection(
            view, matmul, index, is_transposed=matmul is not context and index == 1, limit=limit
        )
        for matmul, index in ((scores.matmul, 0), (scores.matmul, 1), (context, 1))
    )
    if not query.size == key.size == value.size:
        raise refuse(scores.matmul, "has heads of different sizes, or shares keys or values")
    heads, width = query.size
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


def _read_scores(view: GraphView, softmax: ir.Node, *, limit: int) -> _Scores:
    """Read the scale, the mask and the position bias of the scores that a Softmax reads."""
    value = softmax.inputs[0]
    assert value is not None
    products = view.source(value, "the scores")
    if producer_of(products, "MatMul") is None or products in view.linear_layers:
        raise refuse(products.producer(), "is where the matmul of queries and keys should be")
    longest = limit if view.tokens else min(limit, _LONG)
    found = _read_distances(view, softmax, products, longest)
    if longest < limit and found.bias.any():
        found = _read_distances(view, softmax, products, limit)
    return found


def _read_distances(view: GraphView, softmax: ir.Node, products: ir.Value, tokens: int) -> _Scores:
    """Read what is done to the scores of a text without padding."""
    value, matmul = softmax.inputs[0], products.producer()
    assert value is not None
    assert matmul is not None
    # A single number broadcasts. Only dimensions along which the bias differs become larger than 1.
    zero = np.zeros((1, 1, 1, 1), np.float32)
    added = view.evaluate(value, {products: zero}, view.long_probe(tokens))
    if added.ndim != 4:
        raise refuse(softmax, "does not read scores (batch, heads, queries, keys)")
    added = np.broadcast_to(added[0], (added.shape[1], tokens, tokens))
    last = added[:, -1, ::-1] > _LOW
    reach = int(last.all(axis=0).argmin()) if not last.all() else tokens
    is_causal = reach > 1 and not (added[:, 0, 1] > _LOW).any()
    window = reach - 1 if reach < tokens else None
    places = np.arange(tokens, dtype=np.int32)
    # Key minus query, `(queries, keys)`.
    distances = places - places[:, None]
    allowed = np.abs(distances) <= (tokens if window is None else window)
    if is_causal:
        allowed &= distances <= 0
    if reach == 0 or ((added > _LOW) != allowed).any():
        raise refuse(softmax, "has a mask that is neither of padding nor causal nor a window")
    # The last row of the scores, and the first one.
    table = np.concatenate([added[:, -1, :-1], added[:, 0, :]], axis=-1)
    bias = np.where(table > _LOW, table, np.float32(0))
    distances += tokens - 1
    for scores, row in zip(added, bias, strict=True):
        # A row at a time: with a table of distances, one of all pairs would take 8 times as much.
        if (scores != row[distances])[allowed].any():
            raise refuse(softmax, "adds a bias that is not one of the distance of two tokens")
    # Each token attends to itself.
    first, second = (view.evaluate(value, {products: each})[0] for each in (zero, zero + 1))
    own = np.diagonal(second - first, axis1=1, axis2=2)[:, : view.probe.is_text[0].sum()]
    factor = float(np.median(own))
    if not factor > 0:
        raise refuse(softmax, "does not multiply scores by a positive factor")
    return _Scores(matmul=matmul, factor=factor, is_causal=is_causal, window=window, bias=bias)


def _read_projection(
    view: GraphView, matmul: ir.Node, index: int, *, is_transposed: bool, limit: int
) -> _Projection:
    """Read an input of one of the two matmuls. Transposed, its last axis runs over tokens."""
    value = matmul.inputs[index]
    assert value is not None
    end = view.source(value, f"input {index} of {matmul.name!r}")
    if end not in view.linear_layers:
        raise refuse(end.producer(), "is where a linear layer of query, key or value should be")
    linear, source = view.linear(end)

    def heads_of(x: Array, probe: Probe) -> Array:
        """Compute heads `(texts, heads, tokens, width)` of outputs of the linear layer."""
        made, (texts, tokens) = view.evaluate(value, {end: x}, probe), probe.ids.shape
        if made.ndim == 3 and len(made) % texts == 0:
            # The first axis has all heads of all texts.
            made = made.reshape(texts, -1, *made.shape[1:])
        if is_transposed and made.ndim == 4:
            made = made.swapaxes(2, 3)
        if made.ndim != 4 or (made.shape[0], made.shape[2]) != (texts, tokens):
            raise refuse(matmul, "does not multiply tensors (batch, heads, tokens, width)")
        return made

    x = numbered(view.shape(end))
    ones, made = (heads_of(each, view.probe) for each in (np.ones_like(x), x))
    # A rotation leaves the first token of a text as it is.
    factor = float(ones[0, 0, 0, 0])
    columns = np.rint(made[0, :, 0].astype(np.float64) / (factor or 1)).astype(np.int64)
    if not factor > 0 or columns.min() < 0 or columns.max() >= len(linear.weight):
        raise refuse(value.producer(), "computes heads that are not outputs of a linear layer")
    plain = x.reshape(*view.probe.ids.shape, -1)[..., columns].swapaxes(1, 2) * factor
    rotary = None
    if not np.allclose(made, plain, 1e-6):

        def rotated(x: Array, probe: Probe) -> Array:
            return heads_of(x, probe) / np.float32(factor)

        rotary = _read_rotary(view, end, rotated, columns, limit)
    return _Projection(
        linear=take_outputs(linear, columns.ravel()),
        end=end,
        source=view.state(source, "the states that an attention reads"),
        size=columns.shape,
        factor=factor,
        rotary=rotary,
    )


def _read_rotary(
    view: GraphView,
    end: ir.Value,
    rotated: Callable[[Array, Probe], Array],
    columns: NDArray[np.int64],
    limit: int,
) -> Rotary:
    """Return the rotation of queries or keys. Equal rotations are one object, kept by `view`.

    `rotated` computes the rotated heads of outputs `end` of the linear layer. Their order in the
    heads is `columns`, `(heads, width)`.
    """
    half = columns.shape[1] // 2

    def table(tokens: int) -> tuple[Array, Array]:
        probe = view.long_probe(tokens)
        # Ones in the first half of each head, and zeros in the second one.
        x = np.zeros(view.shape(end, probe), np.float32)
        x[..., columns[:, :half]] = 1
        made = np.ascontiguousarray(rotated(x, probe)[0, 0])
        return made[:, :half].copy(), made[:, half : 2 * half].copy()

    cos, sin = table(min(limit, _START))
    for known in view.rotations:
        pairs = ((known.cos, cos), (known.sin, sin))
        if all(np.array_equal(each[: len(cos)], start) for each, start in pairs):
            return known
    cos, sin = table(limit)
    view.rotations.append(Rotary(cos=cos, sin=sin))
    return view.rotations[-1]


def take_outputs(linear: Linear, columns: NDArray[np.int64], *, first: int = 0) -> Linear:
    """Return a linear layer with only some of the outputs, in this order.

    `first` is the index of the first of them in its module.
    """
    if np.array_equal(columns, np.arange(len(linear.weight))):
        return linear
    return dataclasses.replace(
        linear, weight=linear.weight[columns], bias=linear.bias[columns], first=first
    )
