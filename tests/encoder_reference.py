"""Compute an `EncoderModel` in float64, one text at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from native_references import spread
from qdqbert.encoders.model import (
    Attention,
    Codes,
    Convolution,
    Embeddings,
    EncoderModel,
    Head,
    Layer,
    Linear,
    Norm,
    Residual,
    Rotary,
    RoundTrip,
    Table,
)
from qdqbert.evidence.fidelity import sqnr_db

if TYPE_CHECKING:
    import onnx_ir as ir

# SQNR of two computations of the same codes, apart from rounding ties.
LEAST_DB = 40.0
# float32 sums in a different order, over at most two layers.
FLOAT_TOLERANCE = 3e-5

Array = np.ndarray[Any, np.dtype[np.float64]]


def erf(x: Array) -> Array:
    return torch.special.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy()


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
POOLINGS: Mapping[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / math.sqrt(len(x)),
    "sum": lambda x: x.sum(axis=0),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(1, len(x) + 1)),
}


def quantize(x: Array, codes: Codes) -> tuple[Array, Array]:
    """Return codes without their zero point, and a scale, which broadcasts to the codes."""
    scaled = x * codes.multiplier
    if not codes.dynamic:
        quantized = np.clip(np.rint(scaled) + codes.zero_point, 0, 255)
        return quantized - codes.zero_point, np.array(codes.scale, np.float64)
    scaled = spread(scaled, codes.hadamard)
    scale = np.abs(scaled).max(axis=-1, keepdims=True) / 127
    scale = np.where(scale == 0, 1, scale)
    return np.rint(scaled / scale), scale


def linear(x: Array, layer: Linear) -> Array:
    weight = np.asarray(layer.weight, np.float64)
    if layer.codes is None:
        return x @ weight.T + layer.bias
    assert layer.weight_scale is not None
    codes, scale = quantize(x, layer.codes)
    return codes @ weight.T * (scale * layer.weight_scale) + layer.bias


def round_trip(x: Array, codes: RoundTrip | None) -> Array:
    if codes is None:
        return x
    factor = 1.0 if codes.pre_quant_scale is None else codes.pre_quant_scale.astype(np.float64)
    rounded = np.clip(np.rint(x * factor / codes.scale) + codes.zero_point, codes.low, codes.high)
    return (rounded - codes.zero_point) * codes.scale / factor


def norm(x: Array, layer: Norm) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True) * layer.subtracts_mean
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + layer.epsilon) * layer.weight + layer.bias


def look_up(table: Table, rows: Any) -> Array:
    values = table.rows[rows].astype(np.float64)
    return values if table.scale is None else values * table.scale


def embed(embeddings: Embeddings, ids: Any, token_types: Any) -> Array:
    total = look_up(embeddings.words, ids) * embeddings.factor
    if embeddings.dropped_id is not None:
        others = max(int((ids != embeddings.dropped_id).sum()), 1)
        total = total * (len(ids) / others)
    if embeddings.positions is not None:
        positions = np.arange(len(ids))
        if embeddings.padding_id is not None:
            counted = ids != embeddings.padding_id
            positions = np.cumsum(counted) * counted
        total = total + look_up(embeddings.positions, embeddings.first_position + positions)
    if embeddings.token_types is not None:
        total = total + look_up(embeddings.token_types, token_types)
    total = optional_norm(total, embeddings.norm)
    return total if embeddings.projection is None else linear(total, embeddings.projection)


def split_heads(x: Array, heads: int) -> Array:
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def rotate(x: Array, rotary: Rotary) -> Array:
    a, b = np.split(x, 2, axis=-1)
    cos, sin = (each[: x.shape[-2]].astype(np.float64) for each in (rotary.cos, rotary.sin))
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(x: Array, attention: Attention, attended: int | None = None) -> Array:
    query, key, value = (
        optional_norm(split_heads(linear(x, layer), attention.heads), own)
        if attention.norms_each_head
        else split_heads(optional_norm(linear(x, layer), own), attention.heads)
        for layer, own in (
            (attention.query, attention.query_norm),
            (attention.key, attention.key_norm),
            (attention.value, None),
        )
    )
    if attention.rotary is not None:
        query, key = (rotate(each, attention.rotary) for each in (query, key))
    query = round_trip(query, attention.query_codes)
    key = round_trip(key, attention.key_codes)
    value = round_trip(value, attention.value_codes)
    tokens = len(x)
    distance = np.arange(tokens) - np.arange(tokens)[:, None]
    scores = query @ key.transpose(0, 2, 1)
    if (relative := attention.relative) is not None:
        rows = relative.rows[distance + len(relative.rows) // 2]
        if relative.keys is not None:
            scores = scores + np.einsum("hid,hijd->hij", query, relative.keys[:, rows])
        if relative.queries is not None:
            scores = scores + np.einsum("hjd,hijd->hij", key, relative.queries[:, rows])
    scores = scores * attention.scale
    if attention.position_bias is not None:
        limit = (attention.position_bias.shape[1] + 1) // 2
        scores = scores + attention.position_bias[:, distance + limit - 1]
    if attention.causal:
        scores = np.where(distance <= 0, scores, -np.inf)
    if attention.window is not None:
        scores = np.where(np.abs(distance) <= attention.window, scores, -np.inf)
    if attended is not None:
        # The others expand the text.
        scores[..., attended:] = -np.inf
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=-1, keepdims=True)
    context = round_trip(probabilities, attention.probability_codes) @ value
    merged = context.transpose(1, 0, 2).reshape(tokens, -1)
    return linear(merged, attention.output)


def add(local: Array, states: Array, residual: Residual) -> Array:
    local = optional_norm(local, residual.local_norm)
    total = round_trip(local, residual.local_codes) + round_trip(states, residual.residual_codes)
    total = optional_norm(total, residual.norm)
    return total if residual.again is None else norm(total + states, residual.again)


def optional_norm(x: Array, layer: Norm | None) -> Array:
    return x if layer is None else norm(x, layer)


def run_layer(x: Array, layer: Layer, attended: int | None = None) -> Array:
    local = attend(optional_norm(x, layer.attention_norm), layer.attention, attended)
    x = add(local, x, layer.attention_residual)
    normed = optional_norm(x, layer.up_norm)
    wide = ACTIVATIONS[layer.activation](linear(normed, layer.up))
    if layer.gate is not None:
        wide = wide * linear(normed, layer.gate)
    local = linear(wide, layer.down) if layer.experts is None else mix(normed, wide, layer)
    return add(local, x, layer.residual)


def mix(x: Array, wide: Array, layer: Layer) -> Array:
    """Return the weighted sum of experts, all of which are computed."""
    assert layer.experts is not None
    scores = x @ layer.experts.router.astype(np.float64).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    least = np.sort(weights, axis=1)[:, -layer.experts.chosen, None]
    each = wide.reshape(len(x), layer.parts, -1)
    total = np.zeros_like(x) + layer.experts.bias
    for expert, weight in enumerate(np.where(weights >= least, weights, 0).T):
        found = linear(each[:, expert], layer.down).reshape(len(x), layer.parts, -1)
        total += weight[:, None] * found[:, expert]
    return total


def convolve(x: Array, embedded: Array, convolution: Convolution) -> Array:
    hidden = x.shape[1]
    weight = np.asarray(convolution.linear.weight, np.float64).reshape(hidden, -1, hidden)
    added = np.zeros_like(x) + convolution.linear.bias
    for i in range(len(x)):
        for tap in range(weight.shape[1]):
            j = i + tap - weight.shape[1] // 2
            if 0 <= j < len(x):
                added[i] += weight[:, tap] @ embedded[j]
    return norm(x + ACTIVATIONS[convolution.activation](added), convolution.norm)


def run_head(states: Array, head: Head) -> dict[str, Array]:
    x = run_steps(states, head.steps[: head.token_steps])
    pooled = np.concatenate([POOLINGS[each](x) for each in head.poolings], axis=-1)
    x = run_steps(pooled, head.steps[head.token_steps :])
    return {
        output.name: x if output.column is None else x[..., output.column]
        for output in head.outputs
    }


def run_steps(x: Array, steps: Sequence[Any]) -> Array:
    for step in steps:
        if isinstance(step, Linear):
            x = linear(x, step)
        elif isinstance(step, Norm):
            x = norm(x, step)
        elif step == "log1p":
            x = np.log1p(x)
        elif step == "normalize":
            x = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        else:
            x = ACTIVATIONS[step](x)
    return x


def run_text(
    model: EncoderModel, ids: Any, token_types: Any, attended: int | None = None
) -> dict[str, Array]:
    """Compute the outputs for one text without padding.

    Args:
        model: The model.
        ids: Token ids, `(tokens,)`.
        token_types: Token types, `(tokens,)`.
        attended: Number of tokens that are attended to; all by default.
    """
    x = embedded = embed(model.embeddings, ids, token_types)
    for index, layer in enumerate(model.layers):
        x = run_layer(x, layer, attended)
        if index == 0 and model.convolution is not None:
            x = convolve(x, embedded, model.convolution)
    x = optional_norm(x, model.final_norm)
    return {name: y for head in model.heads for name, y in run_head(x, head).items()}


def run_encoder(model: EncoderModel, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Compute the outputs for a batch, with zeros where an output has rows for padding.

    Args:
        model: The model.
        inputs: `input_ids`, `attention_mask` and optionally `token_type_ids`, `(batch, seq)` or
            `(batch, choices, seq)`.
    """
    shape = inputs["input_ids"].shape
    tokens = shape[-1]
    ids = inputs["input_ids"].reshape(-1, tokens)
    mask = inputs["attention_mask"].reshape(-1, tokens)
    attended = lengths = mask.sum(axis=1)
    if model.expansion_id is not None:
        lengths = (mask | (ids == model.expansion_id)).sum(axis=1)
    if model.filled_id is not None:
        room = [(0, 0), (0, model.limit - tokens)]
        ids = np.where(mask, ids, model.filled_id)
        ids = np.pad(ids, room, constant_values=model.filled_id)
        attended = lengths = np.full(len(ids), model.limit)
    types = np.zeros_like(ids)
    if "token_type_ids" in model.input_names:
        types = inputs["token_type_ids"].reshape(-1, tokens)
    texts = [
        run_text(model, ids[i, :length], types[i, :length], attended[i])
        for i, length in enumerate(lengths)
    ]
    of_tokens = {output.name: head.is_of_tokens for head in model.heads for output in head.outputs}
    outputs = {}
    for name, is_of_tokens in of_tokens.items():
        rows = [text[name] for text in texts]
        if is_of_tokens:
            rows = [np.pad(y, [(0, tokens - len(y))] + [(0, 0)] * (y.ndim - 1)) for y in rows]
        stacked = np.stack(rows)
        outputs[name] = stacked.reshape(*shape[:-1], *stacked.shape[1:])
    return outputs


def random_inputs(shape: tuple[int, ...], *, seed: int = 0) -> dict[str, Any]:
    """Return random tokens and token types. Each text after the first has one more [PAD]."""
    rng = np.random.default_rng(seed)
    rows, tokens = int(np.prod(shape[:-1])), shape[-1]
    lengths = np.maximum(tokens - np.arange(rows) % tokens, 1)
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask == 1, rng.integers(5, 120, mask.shape), 1)
    types = rng.integers(0, 2, mask.shape) * mask
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: array.reshape(shape) for name, array in arrays.items()}


def assert_outputs(
    model: EncoderModel,
    expected: Mapping[str, Any],
    inputs: Mapping[str, Any],
    *,
    has_codes: bool = False,
) -> None:
    """Compare what the reference computes with what an engine does.

    Args:
        model: The model.
        expected: Outputs of the engine.
        inputs: Inputs of the model.
        has_codes: Whether activations are quantized. Values near the middle of two codes may then
            be rounded to the other one.
    """
    actual = run_encoder(model, inputs)
    assert sorted(actual) == sorted(expected)
    mask = inputs["attention_mask"]
    for name, output in expected.items():
        is_of_tokens = output.shape[: mask.ndim] == mask.shape
        wanted, found = (x[mask == 1] if is_of_tokens else x for x in (output, actual[name]))
        assert found.shape == wanted.shape
        if has_codes:
            assert sqnr_db(wanted, found) >= LEAST_DB, name
        else:
            np.testing.assert_allclose(found, wanted, atol=FLOAT_TOLERANCE)


def check_read(
    graph: ir.Model,
    run: Callable[[ir.Model, Mapping[str, Any]], Mapping[str, Any]],
    inputs: Mapping[str, Any],
    *,
    longest: int = 64,
) -> EncoderModel:
    """Read a float graph, and compare what the reference computes with what an engine does.

    Args:
        graph: The graph.
        run: Returns the outputs of a graph by name.
        inputs: Inputs of the graph.
        longest: As in `read_encoder`.
    """
    # A GPU machine runs the rest of this module without the packages of ONNX.
    from qdqbert.graphs.encoder import read_encoder

    names = [str(value.name) for value in graph.graph.outputs]
    read = read_encoder(graph, names, longest=longest).encoder
    assert read.tail is None
    assert_outputs(read, run(graph, inputs), inputs)
    return read
