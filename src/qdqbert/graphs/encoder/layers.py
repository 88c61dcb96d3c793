"""Read encoder layers, from the last one back to the embeddings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdqbert.calibration.reference.body import ACTIVATIONS
from qdqbert.encoders.model import Activation, Layer, Linear, Norm, Residual
from qdqbert.graphs.edit import producer_of
from qdqbert.graphs.encoder.attention import read_attention, take_outputs
from qdqbert.graphs.encoder.functions import match_activation, match_rows, sample
from qdqbert.graphs.encoder.refusal import refuse
from qdqbert.graphs.encoder.view import GraphView, terms_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualAdd:
    """A residual add and its LayerNorm, if it has one.

    Attributes:
        residual: The LayerNorm.
        local: Output of the linear layer whose output is added.
        states: The states that it is added to.
    """

    residual: Residual
    local: ir.Value
    states: ir.Value


def ends_layer(view: GraphView, value: ir.Value) -> bool:
    """Return whether a value is the output of a residual add, or of a LayerNorm after one."""
    if value in view.residual_sums:
        return True
    norm = producer_of(value, "LayerNormalization")
    terms = _terms_before(norm)
    if norm is None or not terms or norm.inputs[0] in view.linear_layers:
        return False
    # The sum of the embeddings is computed from tables only, and may be one of the terms.
    return not view.fixed.intersection(terms) and any(map(view.sources, terms))


def read_adds(view: GraphView, states: ir.Value) -> tuple[list[ResidualAdd], ir.Value, Norm | None]:
    """Read the residual adds of all layers, back from the last hidden states.

    Returns:
        The adds, the last one first, the states that the first layer reads, and the LayerNorm after
        the last layer if layers normalize first.

    Raises:
        GraphError: An add has another form.
    """
    adds: list[ResidualAdd] = []
    final_norm = None
    norm = producer_of(states, "LayerNormalization")
    before = [view.sources(term) for term in _terms_before(norm)]
    if norm is not None and any(
        len(each) == 1 and each[0] in view.residual_sums for each in before
    ):
        # The feed-forward part in front of it has a LayerNorm of its own.
        final_norm, states = view.norm(norm)
    while (final_norm is not None and not adds) or ends_layer(view, states):
        adds.append(_read_add(view, states))
        states = adds[-1].states
    return adds, states, final_norm


def read_layers(view: GraphView, adds: Sequence[ResidualAdd], limit: int) -> tuple[Layer, ...]:
    """Read all layers, from their residual adds, the last one first.

    Raises:
        GraphError: A layer has another form.
    """
    pairs = list(itertools.zip_longest(adds[::2], adds[1::2]))
    layers = [
        _read_layer(view, first, second, limit, f"encoder.layer.{len(pairs) - 1 - index}")
        for index, (second, first) in enumerate(pairs)
    ]
    return tuple(layers[::-1])


def _terms_before(norm: ir.Node | None) -> tuple[ir.Value, ...]:
    """Return the two terms of the sum that a LayerNorm reads; nothing if it reads no such sum."""
    source = None if norm is None else norm.inputs[0]
    terms = () if source is None else terms_of(source)
    return terms if len(terms) == 2 else ()


def _read_add(view: GraphView, states: ir.Value) -> ResidualAdd:
    """Read a residual add, and the LayerNorm after it if there is one."""
    norm, total = None, states
    if (node := producer_of(states, "LayerNormalization")) is not None:
        norm, total = view.norm(node)
    terms = [view.state(term, "an input of a residual add") for term in terms_of(total)]
    candidates = [
        (local, other)
        for local, other in itertools.permutations(terms, 2)
        if local in view.linear_layers and other in view.before(local, {other})[1:]
    ]
    if len(candidates) != 1:
        raise refuse(
            total.producer(), "does not add the output of a linear layer to earlier states"
        )
    ((local, residual),) = candidates
    return ResidualAdd(residual=Residual(norm=norm), local=local, states=residual)


def _read_layer(
    view: GraphView, first: ResidualAdd | None, second: ResidualAdd, limit: int, path: str
) -> Layer:
    """Read a layer, from the residual adds after its attention, if there is one, and at its end."""
    down, inner = view.linear(second.local, f"{path}.output.dense")
    activation, up, gate, wide = _read_wide(view, inner, f"{path}.intermediate")
    up_norm = _norm_between(view, wide, second.states)
    if first is None:
        raise refuse(
            second.states.producer(), "is where the residual add after an attention should be"
        )
    attention, source = read_attention(view, first.local, limit=limit, path=f"{path}.attention")
    return Layer(
        attention_norm=_norm_between(view, source, first.states),
        attention=attention,
        attention_residual=first.residual,
        up_norm=up_norm,
        up=up,
        gate=gate,
        activation=activation,
        down=down,
        residual=second.residual,
    )


def _norm_between(view: GraphView, value: ir.Value, states: ir.Value) -> Norm | None:
    """Return the LayerNorm of states that a part of a layer reads; `None` if it reads states."""
    node = None if value is states else producer_of(value, "LayerNormalization")
    return None if node is None else view.norm(node)[0]


def _read_wide(
    view: GraphView, value: ir.Value, path: str
) -> tuple[Activation, Linear, Linear | None, ir.Value]:
    """Read the wide layers of a feed-forward part, of which `value` is the result.

    Returns:
        The activation function, the linear layer before it, the gate if there is one, and the
        states that both read.
    """
    node, ends = value.producer(), view.sources(value)
    if len(ends) not in (1, 2) or any(end not in view.linear_layers for end in ends):
        raise refuse(node, "is not computed from the first linear layer of a feed-forward part")
    linears, read = zip(*(view.linear(end, f"{path}.dense") for end in ends), strict=True)
    samples = [np.roll(sample(view.shape(end)), 7 * place) for place, end in enumerate(ends)]
    made = view.evaluate(value, dict(zip(ends, samples, strict=True)))
    source = view.state(read[0], "the input of a feed-forward part")
    parts = list(zip(linears, samples, strict=True))
    if len(ends) == 1 and made.size == samples[0].size:
        rows = match_rows(samples[0], made)
        for activation in ACTIVATIONS:
            if rows == (activation,):
                return activation, linears[0], None, source
        raise refuse(node, f"is not one of the activation functions {', '.join(ACTIVATIONS)}")
    if len(ends) == 1:
        # Both are parts of one module.
        halves = np.split(np.arange(len(linears[0].weight)), 2)
        parts = [
            (take_outputs(linears[0], half, first=int(half[0])), samples[0][..., half])
            for half in halves
        ]
    for (up, x), (gate, factor) in itertools.permutations(parts, 2):
        found = match_activation(made, x, factor) if made.size == x.size else None
        if found is not None:
            module = gate.module if len(ends) == 1 else f"{path}.gate"
            return found, up, dataclasses.replace(gate, module=module), source
    raise refuse(node, "is not an activation function times a gate")
