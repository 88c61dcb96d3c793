"""Read encoder layers, from the last one back to the embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdqbert.encoders.model import (
    Activation,
    Layer,
    Linear,
    Norm,
    Residual,
    Rotary,
)
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.attention import AttentionNodes, read_attention, take_outputs
from qdqbert.graph.encoder.functions import ACTIVATIONS, closest, match_rows, sample
from qdqbert.graph.encoder.linear_layers import LinearNodes
from qdqbert.graph.encoder.norms import read_norm
from qdqbert.graph.encoder.probe import Array
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.residuals import sum_of
from qdqbert.graph.encoder.rotation import read_rotary
from qdqbert.graph.encoder.scores import read_distances
from qdqbert.graph.encoder.view import GraphView

# The name of a feed-forward part's first linear layer in BERT.
_UP = "intermediate.dense"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNodes:
    """A layer that was read.

    Attributes:
        layer: Its parts, without positions of tokens.
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
        residual: The LayerNorm.
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
        source: Input of `up`.
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
    norm = producer_of(value, "LayerNormalization")
    terms = _terms_before(norm)
    if norm is None or terms is None or norm.inputs[0] in view.linear_layers:
        return False
    # The sum of the embeddings is computed from tables only, and may be one of the terms.
    return not view.fixed.intersection(terms) and any(
        view.sources(term, mark=False) for term in terms
    )


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
    """Return layers with their rotations and position biases, and with names.

    Args:
        view: The graph.
        layers: The layers.
        limit: Longest text in tokens.
    """
    rotations: dict[frozenset[ir.Value], Rotary] = {}
    return tuple(
        _named(_with_positions(view, each, limit, rotations), f"encoder.layer.{index}")
        for index, each in enumerate(layers)
    )


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
    """Return the part in front of a term of a residual add, or the term itself."""
    sources = view.sources(term, mark=False)
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
        value: Input of the part.
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
    ends = view.sources(down.source)
    if len(ends) not in (1, 2) or any(end not in view.linear_layers for end in ends):
        raise refuse(
            down.source.producer(),
            "is not computed from the first linear layer of a feed-forward part",
        )
    wide = [view.linear(end) for end in ends]
    samples = [np.roll(sample(view.shape(end)), 7 * place) for place, end in enumerate(ends)]
    made = view.evaluate(down.source, dict(zip(ends, samples, strict=True)))
    gate = None
    if len(ends) == 2 or made.size * 2 == samples[0].size:
        found = _read_gate(wide, samples, made)
        if found is None:
            raise refuse(down.source.producer(), "is not an activation function times a gate")
        activation, up, gate = found
    else:
        rows, up = match_rows(samples[0], made), wide[0].linear
        if rows is None or len(rows) != 1 or rows[0] == "normalize":
            raise refuse(
                down.source.producer(),
                f"is not one of the activation functions {', '.join(ACTIVATIONS)}",
            )
        activation = rows[0]
    states = [view.state(each.source, "the input of a feed-forward part") for each in wide]
    if len(set(states)) > 1:
        raise refuse(down.source.producer(), "multiplies by a gate that reads other states")
    name_of_gate = "intermediate.gate" if len(wide) == 2 else _UP
    return _FeedForward(
        up=dataclasses.replace(up, module=_UP),
        gate=None if gate is None else dataclasses.replace(gate, module=name_of_gate),
        activation=activation,
        down=dataclasses.replace(down.linear, module="output.dense"),
        source=states[0],
    )


def _read_gate(
    wide: Sequence[LinearNodes], samples: Sequence[Array], made: Array
) -> tuple[Activation, Linear, Linear] | None:
    """Return the activation function of a gated feed-forward part, its linear layer and the gate.

    Args:
        wide: The linear layer that computes both, or one for each.
        samples: Outputs of these layers.
        made: Results of the part for them.
    """
    if len(wide) == 2:
        first, second = ((each.linear, x) for each, x in zip(wide, samples, strict=True))
    else:
        linear, x = wide[0].linear, samples[0]
        first, second = (
            # Both are parts of one module.
            (
                dataclasses.replace(take_outputs(linear, columns), first=int(columns[0])),
                x[..., columns],
            )
            for columns in np.split(np.arange(x.shape[-1]), 2)
        )
    for (up, x), (gate, factor) in ((first, second), (second, first)):
        if made.size != x.size:
            return None
        expected = {
            name: function(x.astype(np.float64)) * factor for name, function in ACTIVATIONS.items()
        }
        # The factors are as large as 12.
        activation = closest(made.reshape(x.shape), expected, tolerance=4e-3)
        if activation is not None:
            return activation, up, gate
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
    first, second = (view.state(term, "an input of a residual add") for term in terms)
    candidates = [
        (local, other)
        for local, other in ((first, second), (second, first))
        if local in view.linear_layers and view.depends_on(local, other)
    ]
    if len(candidates) != 1:
        raise refuse(adds, "does not add the output of a linear layer to earlier states")
    ((local, residual),) = candidates
    return _ResidualNodes(residual=Residual(norm=norm), local=local, states=residual)


def _named(layer: Layer, path: str) -> Layer:
    """Name the linear layers of a layer by its module."""

    def named(linear: Linear) -> Linear:
        return dataclasses.replace(linear, module=f"{path}.{linear.module}")

    attention = layer.attention
    return dataclasses.replace(
        layer,
        attention=dataclasses.replace(
            attention,
            query=named(attention.query),
            key=named(attention.key),
            value=named(attention.value),
            output=named(attention.output),
        ),
        up=named(layer.up),
        gate=None if layer.gate is None else named(layer.gate),
        down=named(layer.down),
    )
