"""Read encoder layers, from the last one back to the embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.encoders.model import (
    Activation,
    Layer,
    Linear,
    Norm,
    Residual,
    Rotary,
    RoundTrip,
)
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.attention import AttentionNodes, read_attention, take_outputs
from qdqbert.graph.encoder.functions import ACTIVATIONS, match_rows, sample
from qdqbert.graph.encoder.norms import read_norm
from qdqbert.graph.encoder.probe import Array
from qdqbert.graph.encoder.quantization import pair_of, round_trip, split_channel_factor
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.residuals import sum_of
from qdqbert.graph.encoder.rotation import read_rotary
from qdqbert.graph.encoder.scores import read_distances
from qdqbert.graph.encoder.view import GraphView

Columns = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNodes:
    """A layer that was read.

    Attributes:
        layer: Its parts, without what depends on the positions of tokens.
        source: The states that it reads.
        attention: The nodes of its attention.
    """

    layer: Layer
    source: ir.Value
    attention: AttentionNodes


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ResidualNodes:
    """A residual add and its LayerNorm, if it has one.

    Attributes:
        residual: The LayerNorm, and the fake quantization of both inputs of the add.
        local: Output of the linear layer whose output is added.
        states: The states that it is added to.
    """

    residual: Residual
    local: ir.Value
    states: ir.Value


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FeedForward:
    """The feed-forward part of a layer; see `Layer`.

    Attributes:
        source: What `up` reads.
    """

    up: Linear
    gate: Linear | None
    activation: Activation
    down: Linear
    source: ir.Value


def ends_layer(view: GraphView, value: ir.Value) -> bool:
    """Return whether a value is the output of a residual add, or of a LayerNorm after one."""
    if value in view.residual_sums:
        return True
    terms = _terms_before(producer_of(value, "LayerNormalization"))
    if terms is None:
        return False
    return all(view.region(term, mark=False).sources for term in terms)


def read_layers(
    view: GraphView, states: ir.Value
) -> tuple[list[LayerNodes], ir.Value, Norm | None]:
    """Read all layers.

    Args:
        view: The graph.
        states: The last hidden states.

    Returns:
        The layers in order, the states that the first one reads, and the LayerNorm after the last
        one if layers normalize first.

    Raises:
        GraphError: A layer has another form.
    """
    layers: list[LayerNodes] = []
    final_norm = None
    norm = producer_of(states, "LayerNormalization")
    terms = _terms_before(norm) or ()
    if norm is not None and any(_state_of(view, term) in view.residual_sums for term in terms):
        # The feed-forward part in front of it has a LayerNorm of its own.
        final_norm, states = read_norm(view, norm)
    ends = final_norm is not None or ends_layer(view, states)
    while ends:
        layers.append(_read_layer(view, states))
        states = layers[-1].source
        ends = ends_layer(view, states)
    return layers[::-1], states, final_norm


def with_positions(view: GraphView, layers: Sequence[LayerNodes], limit: int) -> tuple[Layer, ...]:
    """Return layers with all that depends on the positions of tokens.

    Args:
        view: The graph.
        layers: The layers.
        limit: Longest text in tokens.
    """
    rotations: dict[frozenset[ir.Value], Rotary] = {}
    return tuple(_with_positions(view, each, limit, rotations) for each in layers)


def _with_positions(
    view: GraphView,
    nodes: LayerNodes,
    limit: int,
    rotations: dict[frozenset[ir.Value], Rotary],
) -> Layer:
    attention, found = nodes.layer.attention, nodes.attention
    distances = read_distances(
        view, found.scores, limit=limit, heads=attention.heads, is_causal=attention.causal
    )
    changed = dataclasses.replace(
        attention,
        position_bias=distances.bias,
        window=distances.window,
        rotary=read_rotary(view, found.query, found.key, limit=limit, known=rotations),
    )
    return dataclasses.replace(nodes.layer, attention=changed)


def _terms_before(norm: ir.Node | None) -> tuple[ir.Value, ...] | None:
    """Return the two terms of the sum that a LayerNorm reads; `None` if it reads no such sum."""
    source = None if norm is None else norm.inputs[0]
    terms = None if source is None else sum_of(source)
    return terms if terms is not None and len(terms) == 2 else None


def _state_of(view: GraphView, term: ir.Value) -> ir.Value:
    """Return the part that a term of a residual add is computed from, or the term itself."""
    sources = view.region(term, mark=False).sources
    return sources[0] if len(sources) == 1 else term


def _read_layer(view: GraphView, states: ir.Value) -> LayerNodes:
    second = _read_residual(view, states)
    wide = _read_feed_forward(view, second.local)
    up_norm = _read_norm_between(view, wide.source, second.states, "a feed-forward part")
    if not ends_layer(view, second.states):
        raise refuse(
            second.states.producer(), "is where the residual add after an attention should be"
        )
    first = _read_residual(view, second.states)
    found = read_attention(view, view.linear(first.local))
    layer = Layer(
        attention_norm=_read_norm_between(view, found.source, first.states, "an attention"),
        attention=found.attention,
        attention_residual=first.residual,
        up_norm=up_norm,
        up=wide.up,
        gate=wide.gate,
        activation=wide.activation,
        down=wide.down,
        residual=second.residual,
    )
    return LayerNodes(layer=layer, source=first.states, attention=found)


def _read_norm_between(
    view: GraphView, value: ir.Value, states: ir.Value, what: str
) -> Norm | None:
    """Return the LayerNorm of states that a part of a layer reads; `None` if it reads the states.

    Args:
        view: The graph.
        value: What the part reads.
        states: The states of its residual add.
        what: The part, for messages.
    """
    if value is states:
        return None
    node = producer_of(value, "LayerNormalization")
    if node is not None:
        norm, source = read_norm(view, node)
        if source is states:
            return norm
    raise refuse(value.producer(), f"is read by {what}, but its residual add reads other states")


def _read_feed_forward(view: GraphView, local: ir.Value) -> _FeedForward:
    """Read the feed-forward part whose output is a value."""
    down = view.linear(local)
    wide, pairs = view.source(down.source, "the feed-forward part")
    if wide not in view.linear_layers or pairs:
        raise refuse(wide.producer(), "is where the first linear layer of a feed-forward part is")
    up = view.linear(wide)
    x = sample(view.shape(wide))
    made = view.evaluate(down.source, {wide: x})
    linear, gate = up.linear, None
    if made.size * 2 == x.size:
        gated = _read_gate(x, made)
        if gated is None:
            raise refuse(down.source.producer(), "is not an activation function times a gate")
        activation, columns, columns_of_gate = gated
        linear, gate = (take_outputs(up.linear, each) for each in (columns, columns_of_gate))
    else:
        found = match_rows(x, made)
        if found is None or len(found) != 1 or found[0] == "normalize":
            raise refuse(
                down.source.producer(),
                f"is not one of the activation functions {', '.join(ACTIVATIONS)}",
            )
        activation = found[0]
    return _FeedForward(
        up=linear,
        gate=gate,
        activation=activation,
        down=down.linear,
        source=view.state(up.source, "the input of a feed-forward part"),
    )


def _read_gate(x: Array, made: Array) -> tuple[Activation, Columns, Columns] | None:
    """Return the activation function of a gated feed-forward part, and the columns of both factors.

    Args:
        x: Rows of the linear layer that computes both.
        made: Their products.
    """
    columns = np.arange(x.shape[-1])
    halves = np.split(columns, 2)
    for first, second in (halves, halves[::-1]):
        for name, function in ACTIVATIONS.items():
            expected = function(x[..., first].astype(np.float64)) * x[..., second]
            if np.allclose(made.reshape(expected.shape), expected, rtol=1e-5, atol=1e-4):
                return name, first, second
    return None


def _read_residual(view: GraphView, states: ir.Value) -> _ResidualNodes:
    """Read a residual add, and the LayerNorm after it if there is one."""
    norm, total = None, states
    if (node := producer_of(states, "LayerNormalization")) is not None:
        norm, total = read_norm(view, node)
    terms = sum_of(total)
    adds = total.producer()
    assert terms is not None
    assert adds is not None
    view.mark_read(adds)
    first, second = (_read_term(view, term) for term in terms)
    candidates = [
        (local, other)
        for local, other in ((first, second), (second, first))
        if local[0] in view.linear_layers and view.depends_on(local[0], other[0])
    ]
    if len(candidates) != 1:
        raise refuse(adds, "does not add the output of a linear layer to earlier states")
    ((local, local_codes), (residual, residual_codes)) = candidates[0]
    return _ResidualNodes(
        residual=Residual(norm=norm, local_codes=local_codes, residual_codes=residual_codes),
        local=local,
        states=residual,
    )


def _read_term(view: GraphView, term: ir.Value) -> tuple[ir.Value, RoundTrip | None]:
    """Return the states that a residual add reads, and their fake quantization."""
    restored = split_channel_factor(term)
    pair = pair_of(restored[0] if restored is not None else term)
    if pair is None:
        return view.state(term, "an input of a residual add"), None
    quantize, dequantize = pair
    view.mark_read(quantize, dequantize)
    codes = round_trip(dequantize)
    source = quantize.inputs[0]
    assert source is not None
    if restored is not None:
        scaled = split_channel_factor(source)
        if scaled is None or not np.allclose(scaled[1] * restored[1], 1):
            raise refuse(restored[2], "multiplies a quantized tensor")
        source = scaled[0]
        view.mark_read(restored[2], scaled[2])
        codes = dataclasses.replace(codes, pre_quant_scale=scaled[1])
    return view.state(source, "an input of a residual add"), codes
