"""Compute a float `EncoderModel` with numpy, one text at a time.

It is what INT8 is compared with where no other engine has the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.model import (
    Activation,
    Attention,
    Convolution,
    Embeddings,
    EncoderModel,
    Floats,
    Head,
    Layer,
    Linear,
    Norm,
    Pooling,
    Residual,
    Rotary,
    Step,
    Table,
)

Indices = NDArray[np.int64]


def run_text(model: EncoderModel, ids: Indices, token_types: Indices) -> dict[str, Floats]:
    """Return the outputs for one text without padding, by name.

    Args:
        model: A model whose linear layers are in float.
        ids: Token ids, `(tokens,)`.
        token_types: Token types, `(tokens,)`.
    """
    x = embedded = _embed(model.embeddings, ids, token_types)
    for index, layer in enumerate(model.layers):
        x = _run_layer(x, layer)
        if index == 0 and model.convolution is not None:
            x = _convolve(x, embedded, model.convolution)
    x = layer_norm(x, model.final_norm)
    return {name: values for head in model.heads for name, values in _run_head(x, head).items()}


def _embed(embeddings: Embeddings, ids: Indices, token_types: Indices) -> Floats:
    total = _look_up(embeddings.words, ids)
    if embeddings.dropped_id is not None:
        others = max(int((ids != embeddings.dropped_id).sum()), 1)
        total = total * (len(ids) / np.float32(others))
    if embeddings.positions is not None:
        positions = np.arange(len(ids))
        if embeddings.padding_id is not None:
            counted = ids != embeddings.padding_id
            positions = np.cumsum(counted) * counted
        total = total + _look_up(embeddings.positions, positions)
    if embeddings.token_types is not None:
        total = total + _look_up(embeddings.token_types, token_types)
    total = layer_norm(total, embeddings.norm)
    return total if embeddings.projection is None else _linear(total, embeddings.projection)


def _look_up(table: Table, rows: Indices) -> Floats:
    values = table.rows[rows].astype(np.float32)
    return values if table.scale is None else values * table.scale


def _linear(x: Floats, layer: Linear) -> Floats:
    return x @ layer.weight.astype(np.float32, copy=False).T + layer.bias


def layer_norm(x: Floats, layer: Norm | None) -> Floats:
    """Return rows `(..., channels)` normalized; as they are without a LayerNorm."""
    if layer is None:
        return x
    centered = x - x.mean(axis=-1, keepdims=True) if layer.subtracts_mean else x
    variance = (centered**2).mean(axis=-1, keepdims=True)
    scaled = centered / np.sqrt(variance + np.float32(layer.epsilon))
    return np.asarray(scaled * layer.weight + layer.bias, np.float32)


def _run_layer(x: Floats, layer: Layer) -> Floats:
    attended = _attend(layer_norm(x, layer.attention_norm), layer.attention)
    x = _add(attended, x, layer.attention_residual)
    normed = layer_norm(x, layer.up_norm)
    wide = _ACTIVATIONS[layer.activation](_linear(normed, layer.up))
    if layer.gate is not None:
        wide = wide * _linear(normed, layer.gate)
    return _add(_linear(wide, layer.down), x, layer.residual)


def _add(local: Floats, states: Floats, residual: Residual) -> Floats:
    total = layer_norm(states + local, residual.norm)
    return total if residual.again is None else layer_norm(total + states, residual.again)


def _convolve(x: Floats, embedded: Floats, convolution: Convolution) -> Floats:
    count = convolution.linear.weight.shape[1] // embedded.shape[1]
    wide = np.pad(embedded, [(count // 2, count // 2), (0, 0)])
    near = np.concatenate([wide[each : each + len(x)] for each in range(count)], axis=1)
    added = _ACTIVATIONS[convolution.activation](_linear(near, convolution.linear))
    return layer_norm(x + added, convolution.norm)


def _attend(x: Floats, attention: Attention) -> Floats:
    query, key, value = (
        layer_norm(_linear(x, layer), norm).reshape(len(x), attention.heads, -1).transpose(1, 0, 2)
        for layer, norm in (
            (attention.query, attention.query_norm),
            (attention.key, attention.key_norm),
            (attention.value, None),
        )
    )
    if attention.rotary is not None:
        query, key = (_rotated(each, attention.rotary) for each in (query, key))
    places = np.arange(len(x))
    distance = places - places[:, None]
    scores = _scores(query, key, attention, distance)
    if attention.causal:
        scores = np.where(distance <= 0, scores, np.float32(-np.inf))
    if attention.window is not None:
        scores = np.where(np.abs(distance) <= attention.window, scores, np.float32(-np.inf))
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    context = (probabilities @ value).transpose(1, 0, 2).reshape(len(x), -1)
    return _linear(context, attention.output)


def _scores(query: Floats, key: Floats, attention: Attention, distance: Indices) -> Floats:
    scores = query @ key.transpose(0, 2, 1)
    if (relative := attention.relative) is not None:
        rows = relative.rows[distance + len(relative.rows) // 2][None]
        # Products with all rows, of which each pair of tokens takes one.
        if relative.keys is not None:
            products = query @ relative.keys.transpose(0, 2, 1)
            scores = scores + np.take_along_axis(products, rows, axis=2)
        if relative.queries is not None:
            products = key @ relative.queries.transpose(0, 2, 1)
            turned = np.take_along_axis(products, rows.transpose(0, 2, 1), axis=2)
            scores = scores + turned.transpose(0, 2, 1)
    scores = scores * np.float32(attention.scale)
    if attention.position_bias is not None:
        middle = attention.position_bias.shape[1] // 2
        scores = scores + attention.position_bias[:, distance + middle]
    return np.asarray(scores, np.float32)


def _rotated(x: Floats, rotary: Rotary) -> Floats:
    first, second = np.split(x, 2, axis=-1)
    cos, sin = (each[: x.shape[1]] for each in (rotary.cos, rotary.sin))
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _run_head(states: Floats, head: Head) -> dict[str, Floats]:
    pool = _POOLINGS[head.pooling]
    x = _run_steps(states, head.steps[: head.token_steps])
    x = _run_steps(pool(x), head.steps[head.token_steps :])
    return {
        output.name: x if output.column is None else x[..., output.column]
        for output in head.outputs
    }


def _run_steps(x: Floats, steps: Sequence[Step]) -> Floats:
    for step in steps:
        if isinstance(step, Linear):
            x = _linear(x, step)
        elif isinstance(step, Norm):
            x = layer_norm(x, step)
        elif step == "normalize":
            x = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        else:
            x = _ACTIVATIONS[step](x)
    return x


def _gelu(x: Floats) -> Floats:
    return x * np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5))))


def _erf(x: Floats) -> Floats:
    """Return the error function, within 2e-7.

    Source: Abramowitz and Stegun 1964, formula 7.1.26.
    """
    size = np.abs(x)
    t = 1 / (1 + np.float32(0.3275911) * size)
    total = np.float32(1.061405429) * t
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        total = (total + np.float32(factor)) * t
    return np.asarray(np.sign(x) * (1 - total * np.exp(-size * size)), np.float32)


def _gelu_tanh(x: Floats) -> Floats:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.asarray(x * np.float32(0.5) * (1 + np.tanh(inner)), np.float32)


_ACTIVATIONS: Mapping[Activation, Callable[[Floats], Any]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
_POOLINGS: Mapping[Pooling, Callable[[Floats], Any]] = {
    "none": lambda x: x,
    "first": lambda x: x[0],
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / math.sqrt(len(x)),
}
