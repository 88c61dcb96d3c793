"""Read encoder layers, from the last one back to the embeddings."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from qdqbert.engines.native.model import Activation, Layer, Norm, Residual, RoundTrip
from qdqbert.graph.edit import producer_of
from qdqbert.graph.encoder.attention import AttentionNodes, read_attention
from qdqbert.graph.encoder.functions import ACTIVATIONS, match_rows, sample
from qdqbert.graph.encoder.norms import read_norm, sum_of
from qdqbert.graph.encoder.quantization import pair_of, round_trip, split_channel_factor
from qdqbert.graph.encoder.refusal import refuse
from qdqbert.graph.encoder.scores import read_position_bias
from qdqbert.graph.encoder.view import GraphView


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerNodes:
    """A layer that was read.

    Attributes:
        layer: Its parts, without a position bias.
        source: The states that it reads.
        softmax: Its Softmax.
    """

    layer: Layer
    source: ir.Value
    softmax: ir.Node


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ResidualNodes:
    """A residual add and its LayerNorm.

    Attributes:
        residual: The LayerNorm, and the fake quantization of both inputs of the add.
        local: Output of the linear layer whose output is added.
        states: The states that it is added to.
    """

    residual: Residual
    local: ir.Value
    states: ir.Value


def ends_layer(view: GraphView, value: ir.Value) -> bool:
    """Return whether a value is the output of a LayerNorm after a residual add."""
    norm = producer_of(value, "LayerNormalization")
    terms = sum_of(norm.inputs[0]) if norm is not None and norm.inputs[0] is not None else None
    if terms is None or len(terms) != 2:
        return False
    return all(view.region(term, mark=False).sources for term in terms)


def read_layers(view: GraphView, states: ir.Value) -> tuple[list[LayerNodes], ir.Value]:
    """Read all layers.

    Args:
        view: The graph.
        states: The last hidden states.

    Returns:
        The layers in order, and the states that the first one reads.

    Raises:
        GraphError: A layer has another form.
    """
    layers: list[LayerNodes] = []
    while ends_layer(view, states):
        layers.append(_read_layer(view, states))
        states = layers[-1].source
    return layers[::-1], states


def with_position_bias(view: GraphView, nodes: LayerNodes, limit: int) -> Layer:
    """Return a layer with the position bias of its attention, for texts of up to `limit` tokens."""
    attention = nodes.layer.attention
    bias = read_position_bias(
        view, nodes.softmax, limit=limit, heads=attention.heads, is_causal=attention.causal
    )
    return dataclasses.replace(
        nodes.layer, attention=dataclasses.replace(attention, position_bias=bias)
    )


def _read_layer(view: GraphView, states: ir.Value) -> LayerNodes:
    second = _read_residual(view, states)
    down = view.linear(second.local)
    wide, pairs = view.source(down.source, "the feed-forward part")
    if wide not in view.linear_layers or pairs:
        raise refuse(wide.producer(), "is where the first linear layer of a feed-forward part is")
    activation = _read_activation(view, wide, down.source)
    up = view.linear(wide)
    if view.state(up.source, "the input of a feed-forward part") is not second.states:
        raise refuse(view.linear_layers[wide], "does not read the states of its residual add")
    if not ends_layer(view, second.states):
        raise refuse(
            second.states.producer(), "is where the LayerNorm after an attention should be"
        )
    first = _read_residual(view, second.states)
    found: AttentionNodes = read_attention(view, view.linear(first.local))
    if found.source is not first.states:
        raise refuse(first.states.producer(), "is added to an attention that does not read it")
    layer = Layer(
        attention=found.attention,
        attention_residual=first.residual,
        up=up.linear,
        activation=activation,
        down=down.linear,
        residual=second.residual,
    )
    return LayerNodes(layer=layer, source=found.source, softmax=found.softmax)


def _read_activation(view: GraphView, start: ir.Value, end: ir.Value) -> Activation:
    x = sample(view.shape(start))
    found = match_rows(x, view.evaluate(end, {start: x}))
    if found is None or len(found) != 1 or found[0] == "normalize":
        raise refuse(
            end.producer(), f"is not one of the activation functions {', '.join(ACTIVATIONS)}"
        )
    return found[0]


def _read_residual(view: GraphView, states: ir.Value) -> _ResidualNodes:
    """Read a residual add and the LayerNorm after it."""
    node = states.producer()
    assert node is not None
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
        residual=_residual(norm, local_codes, residual_codes), local=local, states=residual
    )


def _residual(norm: Norm, local: RoundTrip | None, residual: RoundTrip | None) -> Residual:
    return Residual(norm=norm, local_codes=local, residual_codes=residual)


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
