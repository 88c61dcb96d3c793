"""Small random encoders for the native engine, with ranges that fit their activations."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

import encoder_reference
from qdqbert.encoders.model import (
    Activation,
    Attention,
    Codes,
    Convolution,
    Embeddings,
    EncoderModel,
    Experts,
    Head,
    HeadOutput,
    Layer,
    Linear,
    Norm,
    RelativePositions,
    Residual,
    Rotary,
    RoundTrip,
    Table,
)
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.storage import Packed
from qdqbert.quantization.hadamard import Hadamard, hadamard_of

VOCABULARY = 97
LIMIT = 80
# The largest weight code for which sums of two adjacent products fit in 16 bits, as AVX2 needs.
LARGEST_CODE = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes and parts of a random model."""

    hidden: int = 64
    heads: int = 4
    head: int = 16
    inner: int = 128
    layers: int = 2
    limit: int = LIMIT
    activation: Activation = "gelu"
    words_are_int8: bool = True
    has_positions: bool = True
    has_types: bool = True
    shared_codes: bool = True
    smoothed: bool = False
    dynamic: bool = False
    # Whether linear layers are in float.
    floats: bool = False
    # Larger weight codes need exact kernels on AVX2.
    largest_code: int = LARGEST_CODE
    position_bias: bool = False
    causal: bool = False
    padding_id: int | None = None
    dropped_id: int | None = None
    norms_first: bool = False
    gated: bool = False
    rotary: bool = False
    # Tokens of a convolution after the first layer.
    convolution: int | None = None
    # Whether states are added again after the attention.
    adds_twice: bool = False
    # Whether the outputs of parts are normalized before they are added.
    norms_parts: bool = False
    # Whether queries and keys are normalized over the channels of all heads, or of each head.
    normalizes_heads: bool = False
    norms_each_head: bool = False
    # Tokens on each side that the last layer attends to.
    window: int | None = None
    # Which of queries and keys are multiplied by relative positions.
    relative_keys: bool = False
    relative_queries: bool = False
    # Which inputs of attention's products and of residual adds are fake-quantized.
    rounds: tuple[str, ...] = ()
    # Experts of the last layer, of which a token takes two.
    experts: int = 0
    # Channels of the embeddings, if they are projected.
    narrow: int | None = None
    # Factor of the rows of words.
    factor: float = 1.0
    seed: int = 0


MODERN = Shape(
    hidden=40,
    heads=5,
    head=8,
    inner=72,
    norms_first=True,
    gated=True,
    rotary=True,
    window=9,
    has_positions=False,
    has_types=False,
    smoothed=True,
)
"""Two layers with the parts of ModernBERT."""

DECODER = Shape(
    hidden=40,
    heads=5,
    head=24,
    inner=72,
    activation="silu",
    norms_first=True,
    gated=True,
    rotary=True,
    normalizes_heads=True,
    norms_each_head=True,
    causal=True,
    window=9,
    has_positions=False,
    has_types=False,
)
"""Two layers with the parts of Qwen3: heads together are wider than the states."""

SANDWICH = dataclasses.replace(
    DECODER, activation="gelu_tanh", norms_parts=True, causal=False, factor=6.5
)
"""Two layers with the parts of Gemma 3."""

EXPERTS = Shape(
    hidden=40,
    heads=5,
    head=8,
    inner=72,
    rotary=True,
    experts=5,
    dynamic=True,
    has_positions=False,
)
"""Two layers with the parts of nomic-embed-text-v2-moe."""

DISENTANGLED = Shape(
    hidden=40,
    heads=5,
    head=8,
    inner=72,
    relative_keys=True,
    relative_queries=True,
    has_positions=False,
    has_types=False,
    smoothed=True,
)
"""Two layers with the parts of DeBERTa."""

ROUNDED = (
    *("query_codes", "key_codes", "value_codes", "probability_codes"),
    *("local_codes", "residual_codes"),
)
"""All of `Shape.rounds`."""

ALL_PARTS = {
    "bert": Shape(
        hidden=40, heads=5, head=8, inner=72, position_bias=True, narrow=24, dropped_id=9
    ),
    "twice": Shape(hidden=40, heads=5, head=8, inner=72, adds_twice=True, convolution=3),
    "modern": dataclasses.replace(MODERN, normalizes_heads=True),
    "decoder": DECODER,
    "sandwich": SANDWICH,
    "disentangled": DISENTANGLED,
    "rounded": Shape(hidden=40, heads=5, head=8, inner=72, rounds=ROUNDED),
    "experts": EXPERTS,
}
"""Small models that have all parts together, by name."""

HIDDEN_STATES = Head(poolings=("none",), steps=(), outputs=(HeadOutput(name="last_hidden_state"),))


class _Maker:
    """Makes the parts of one model in float."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(shape.seed)

    def floats(self, *shape: int, scale: float = 1.0) -> Any:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def linear(self, rows: int, depth: int, gain: float = 1.0) -> Linear:
        weight = self.floats(rows, depth, scale=gain / np.sqrt(depth))
        return Linear(weight=weight, bias=self.floats(rows, scale=0.1), codes=None)

    def norm(self, width: int) -> Norm:
        return Norm(
            weight=1 + self.floats(width, scale=0.2),
            bias=self.floats(width, scale=0.2),
            epsilon=1e-12,
        )

    def local_norm(self) -> Norm | None:
        if not self.shape.norms_parts:
            return None
        return dataclasses.replace(self.norm(self.shape.hidden), subtracts_mean=False, epsilon=0.2)

    def norm_of_heads(self) -> Norm | None:
        if not self.shape.normalizes_heads:
            return None
        heads = 1 if self.shape.norms_each_head else self.shape.heads
        norm = self.norm(heads * self.shape.head)
        # Large enough to count.
        return dataclasses.replace(norm, subtracts_mean=False, epsilon=0.3)

    def convolution(self) -> Convolution:
        hidden = self.shape.hidden
        return Convolution(
            linear=self.linear(hidden, hidden * (self.shape.convolution or 0), 2.0),
            activation="tanh",
            norm=self.norm(hidden),
        )

    def table(self, rows: int, *, int8: bool = False) -> Table:
        values = self.floats(rows, self.shape.narrow or self.shape.hidden)
        if not int8:
            return Table(rows=values)
        scale = np.abs(values).max(axis=0) / np.float32(127)
        return Table(rows=np.rint(values / scale).astype(np.int8), scale=scale)

    def rotation(self, theta: float) -> Rotary:
        half = self.shape.head // 2
        angles = np.arange(self.shape.limit)[:, None] / theta ** (np.arange(half) / half)
        return Rotary(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))

    def relative(self) -> RelativePositions | None:
        """Return tables with a row for each of the near distances, and fewer for the others."""
        shape = self.shape
        if not shape.relative_keys and not shape.relative_queries:
            return None
        distance = np.arange(1 - shape.limit, shape.limit)
        near = np.clip(distance, -9, 9)
        rows = max(14, shape.limit // 20 + 10) - near - (distance - near) // 20
        keys, queries = (
            self.floats(shape.heads, int(rows.max()) + 1, shape.head, scale=0.7)
            if has_table
            else None
            for has_table in (shape.relative_keys, shape.relative_queries)
        )
        return RelativePositions(keys=keys, queries=queries, rows=rows.astype(np.int32))

    def layer(self, index: int) -> Layer:
        shape = self.shape
        is_last = index == shape.layers - 1
        hidden, width = shape.hidden, shape.heads * shape.head
        bias = None
        if shape.position_bias:
            bias = self.floats(shape.heads, 2 * shape.limit - 1)
        attention = Attention(
            query=self.linear(width, hidden, 1.5),
            key=self.linear(width, hidden, 1.5),
            value=self.linear(width, hidden),
            output=self.linear(hidden, width),
            heads=shape.heads,
            scale=float(1 / np.sqrt(shape.head)),
            causal=shape.causal,
            position_bias=bias,
            window=shape.window if is_last else None,
            relative=self.relative(),
            query_norm=self.norm_of_heads(),
            key_norm=self.norm_of_heads(),
            norms_each_head=shape.norms_each_head,
            rotary=self.rotation(30.0 if is_last else 100.0) if shape.rotary else None,
        )
        parts, experts = 1, None
        if shape.experts and is_last:
            parts = shape.experts
            experts = Experts(router=self.floats(parts, hidden), chosen=2, bias=self.floats(hidden))
        before, after = (
            [self.norm(hidden) if has_norm else None for _ in range(2)]
            for has_norm in (shape.norms_first, not shape.norms_first)
        )
        return Layer(
            # As in ModernBERT, the first attention reads the normalized embeddings.
            attention_norm=before[0] if is_last else None,
            attention=attention,
            attention_residual=Residual(
                local_norm=self.local_norm(),
                norm=after[0],
                again=self.norm(hidden) if shape.adds_twice else None,
            ),
            up_norm=before[1],
            up=self.linear(shape.inner * parts, hidden),
            gate=self.linear(shape.inner, hidden) if shape.gated else None,
            activation=shape.activation,
            down=self.linear(hidden * parts, shape.inner),
            residual=Residual(local_norm=self.local_norm(), norm=after[1]),
            experts=experts,
        )

    def model(self) -> EncoderModel:
        shape = self.shape
        embeddings = Embeddings(
            words=self.table(VOCABULARY, int8=shape.words_are_int8),
            positions=self.table(shape.limit + (shape.padding_id is not None))
            if shape.has_positions
            else None,
            token_types=self.table(2) if shape.has_types else None,
            norm=self.norm(shape.narrow or shape.hidden),
            projection=self.linear(shape.hidden, shape.narrow) if shape.narrow else None,
            padding_id=shape.padding_id,
            dropped_id=shape.dropped_id,
            factor=shape.factor,
        )
        types = ("token_type_ids",) if shape.has_types else ()
        return EncoderModel(
            embeddings=embeddings,
            layers=tuple(self.layer(each) for each in range(shape.layers)),
            final_norm=self.norm(shape.hidden) if shape.norms_first else None,
            heads=(HIDDEN_STATES,),
            limit=shape.limit,
            input_names=("input_ids", "attention_mask", *types),
            convolution=self.convolution() if shape.convolution else None,
        )


@contextlib.contextmanager
def _observed(inputs: dict[int, list[Any]]) -> Iterator[None]:
    """Collect the inputs of each linear layer while the reference runs."""
    compute = encoder_reference.linear

    def linear(x: Any, layer: Linear, **options: Any) -> Any:
        inputs.setdefault(id(layer), []).append(x)
        return compute(x, layer, **options)

    with mock.patch("encoder_reference.linear", linear):
        yield


def _quantized(
    linear: Linear, inputs: list[Any], shape: Shape, *, smoothed: bool, matrix: Hadamard | None
) -> Linear:
    """Return a linear layer in int8, with the range of its inputs unless that is dynamic."""
    x = np.concatenate(inputs)
    factor = np.ones(x.shape[1])
    if smoothed:
        factor = 1 / np.sqrt(np.abs(x).max(axis=0) + 0.1)
    low, high = min((x * factor).min(), 0.0), max((x * factor).max(), 0.0)
    scale = float(np.float32((high - low) / 255))
    zero_point = round(-low / scale)
    weight = linear.weight / factor
    if shape.dynamic:
        scale, zero_point = 1.0, 128
        weight = weight if matrix is None else matrix.spread_weight(weight)
    else:
        matrix = None
    weight_scale = (np.abs(weight).max(axis=1) / shape.largest_code).astype(np.float32)
    multiplier = (factor / scale).astype(np.float32)
    codes = Codes(
        scale=scale,
        zero_point=zero_point,
        multiplier=multiplier if smoothed else multiplier[0],
        dynamic=shape.dynamic,
        hadamard=matrix,
    )
    return Linear(
        weight=np.rint(weight / weight_scale[:, None]).astype(np.int8),
        weight_scale=weight_scale,
        bias=linear.bias,
        codes=codes,
    )


def _with_codes(layer: Layer, inputs: dict[int, list[Any]], shape: Shape) -> Layer:
    def quantized(linear: Linear, smoothed: bool = False) -> Linear:
        gated = linear is layer.down and layer.gate is not None
        # Contexts are not spread.
        is_output = linear is layer.attention.output
        matrix = None if is_output else hadamard_of(linear.weight.shape[1], gated=gated)
        return _quantized(linear, inputs[id(linear)], shape, smoothed=smoothed, matrix=matrix)

    attention = layer.attention
    query, key, value = (
        quantized(each, shape.smoothed)
        for each in (attention.query, attention.key, attention.value)
    )
    if not shape.shared_codes:
        # Other ranges for key and value than for the query.
        key, value = (
            dataclasses.replace(
                each,
                codes=Codes(
                    scale=each.codes.scale * factor,
                    zero_point=each.codes.zero_point + moved,
                    multiplier=each.codes.multiplier / np.float32(factor),
                ),
            )
            for each, factor, moved in ((key, 1.1, 3), (value, 1.05, -3))
        )
    return dataclasses.replace(
        layer,
        attention=dataclasses.replace(
            attention, query=query, key=key, value=value, output=quantized(attention.output)
        ),
        up=quantized(layer.up, shape.smoothed),
        gate=None if layer.gate is None else quantized(layer.gate, shape.smoothed),
        down=quantized(layer.down),
    )


def _with_rounding(layer: Layer, shape: Shape) -> Layer:
    """Return a layer whose products and adds have fake-quantized inputs, as `shape` says."""
    rng = np.random.default_rng(shape.seed)
    by = rng.uniform(0.5, 2, shape.hidden).astype(np.float32)
    signed = {"scale": 0.04, "zero_point": 0, "low": -128, "high": 127}
    roundings = {
        **dict.fromkeys(("query_codes", "key_codes"), RoundTrip(**signed)),
        "value_codes": RoundTrip(scale=0.03, zero_point=133, low=0, high=255),
        "probability_codes": RoundTrip(scale=1 / 255, zero_point=0, low=0, high=255),
        "local_codes": RoundTrip(scale=0.05, zero_point=-9, low=-128, high=127),
        "residual_codes": RoundTrip(**signed, pre_quant_scale=by),
    }

    def changed(part: Any) -> Any:
        names = {field.name for field in dataclasses.fields(part)} & set(shape.rounds)
        return dataclasses.replace(part, **{name: roundings[name] for name in names})

    return dataclasses.replace(
        layer,
        attention=changed(layer.attention),
        attention_residual=changed(layer.attention_residual),
        residual=changed(layer.residual),
    )


def random_model(shape: Shape, heads: tuple[Head, ...] = (HIDDEN_STATES,)) -> EncoderModel:
    """Return a random model whose linear layers are in int8, or in float if `shape` says so."""
    return dataclasses.replace(_random_encoder(shape), heads=heads)


def packed_model(shape: Shape, heads: tuple[Head, ...] = (HIDDEN_STATES,)) -> Packed:
    """Return a random model in the layout of the kernels."""
    return pack_model(random_model(shape, heads), precision="float" if shape.floats else "int8")


@functools.cache
def _random_encoder(shape: Shape) -> EncoderModel:
    model = _Maker(shape).model()
    if shape.floats:
        return dataclasses.replace(
            model, layers=tuple(_with_rounding(each, shape) for each in model.layers)
        )
    inputs: dict[int, list[Any]] = {}
    rng = np.random.default_rng(shape.seed + 1)
    with _observed(inputs):
        for length in (shape.limit, min(shape.limit, 17), min(shape.limit, 30), 5):
            ids, types = rng.integers(0, VOCABULARY, length), rng.integers(0, 2, length)
            x = encoder_reference.embed(model.embeddings, ids, types)
            embedded = x
            for index, layer in enumerate(model.layers):
                x = encoder_reference.run_layer(x, layer)
                if index == 0 and model.convolution is not None:
                    x = encoder_reference.convolve(x, embedded, model.convolution)
    layers = tuple(
        _with_rounding(_with_codes(layer, inputs, shape), shape) for layer in model.layers
    )
    return dataclasses.replace(model, layers=layers)


def random_batch(lengths: tuple[int, ...], *, seed: int = 0, left: bool = False) -> dict[str, Any]:
    """Return texts of the given lengths, padded on the right or on the left."""
    rng = np.random.default_rng(seed)
    most = max(lengths)
    places = np.arange(most)[::-1] if left else np.arange(most)
    mask = (places < np.array(lengths)[:, None]).astype(np.int64)
    ids, types = np.zeros_like(mask), np.zeros_like(mask)
    # The same tokens on both sides.
    ids[mask == 1] = rng.integers(2, VOCABULARY, mask.sum())
    types[mask == 1] = rng.integers(0, 2, mask.sum())
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
