"""ModernBERT (Warner et al. 2024, arXiv:2412.13663)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import answer_spans, decoder, logits, scored_choice
from qdqbert.encoders.layers import Sizes
from qdqbert.encoders.model import (
    Activation,
    Attention,
    Embeddings,
    Head,
    Layer,
    Linear,
    Pooling,
    Residual,
    Rotary,
    Step,
)
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation

_FULL, _SLIDING = "full_attention", "sliding_attention"
# transformers' fields of older files, and their defaults.
_THETAS = {_FULL: ("global_rope_theta", 160_000.0), _SLIDING: ("local_rope_theta", 10_000.0)}
_POOLINGS: Mapping[str, Pooling] = {"cls": "first", "mean": "mean"}


def read_modernbert(reader: Reader) -> Encoder:
    """Read a model, whose layers normalize first, rotate queries and keys, and have gates."""
    config = reader.config
    sizes = Sizes.of(reader, epsilon="norm_eps", default=1e-5)
    limit = config.integer("max_position_embeddings", 8192)
    kinds = _kinds_of_layers(reader)
    rotations = {
        kind: read_rotation(
            config, sizes.head, limit, theta=config.number(*_THETAS[kind]), kind=kind
        )
        for kind in set(kinds)
    }
    # A token attends to half of the window on each side.
    window = config.integer("local_attention", 128) // 2
    activation = config.activation("hidden_activation", "gelu")
    layers = tuple(
        _layer(
            reader.at(f"layers.{index}"),
            sizes,
            activation,
            rotary=rotations[kind],
            window=window if kind == _SLIDING else None,
        )
        for index, kind in enumerate(kinds)
    )
    at = reader.at("embeddings")
    return Encoder(
        embeddings=Embeddings(
            words=at.table("tok_embeddings", width=sizes.hidden),
            positions=None,
            token_types=None,
            norm=at.norm("norm", size=sizes.hidden, epsilon=sizes.epsilon),
        ),
        layers=layers,
        limit=limit,
        final_norm=reader.norm("final_norm", size=sizes.hidden, epsilon=sizes.epsilon),
    )


def _kinds_of_layers(reader: Reader) -> list[str]:
    config = reader.config
    count = config.integer("num_hidden_layers")
    kinds = config.values.get("layer_types")
    if kinds is None:
        every = max(config.integer("global_attn_every_n_layers", 3), 1)
        kinds = [_SLIDING if index % every else _FULL for index in range(count)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != count
        or not all(each in (_FULL, _SLIDING) for each in kinds)
    ):
        raise config.refuse("layer_types", f"expected {_FULL!r} or {_SLIDING!r} for each layer.")
    return kinds


def _layer(
    at: Reader, sizes: Sizes, activation: Activation, *, rotary: Rotary, window: int | None
) -> Layer:
    hidden, inner = sizes.hidden, sizes.inner
    query, key, value = _split(at.linear("attn.Wqkv", inputs=hidden, outputs=3 * hidden), 3)
    up, gate = _split(at.linear("mlp.Wi", inputs=hidden, outputs=2 * inner), 2)
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=at.linear("attn.Wo", inputs=hidden, outputs=hidden),
        heads=sizes.heads,
        scale=float(sizes.head) ** -0.5,
        rotary=rotary,
        window=window,
    )
    # The first layer reads the normalized embeddings.
    has_norm = at.has("attn_norm.weight")
    return Layer(
        attention_norm=at.norm("attn_norm", size=hidden, epsilon=sizes.epsilon)
        if has_norm
        else None,
        attention=attention,
        attention_residual=Residual(norm=None),
        up_norm=at.norm("mlp_norm", size=hidden, epsilon=sizes.epsilon),
        up=up,
        gate=gate,
        activation=activation,
        down=at.linear("mlp.Wo", inputs=inner, outputs=hidden),
        residual=Residual(norm=None),
    )


def _split(linear: Linear, parts: int) -> list[Linear]:
    """Split a linear layer into several, by its outputs."""
    size = len(linear.bias) // parts
    places = [slice(start, start + size) for start in range(0, parts * size, size)]
    return [
        dataclasses.replace(
            linear, weight=linear.weight[place], bias=linear.bias[place], first=place.start
        )
        for place in places
    ]


def _transform(parts: Parts) -> tuple[Step, ...]:
    """Return the first steps of all heads."""
    dense = parts.root.linear("head.dense", inputs=parts.hidden, outputs=parts.hidden)
    activation = parts.config.activation("classifier_activation", "gelu")
    epsilon = parts.config.number("norm_eps", 1e-5)
    return dense, activation, parts.root.norm("head.norm", size=parts.hidden, epsilon=epsilon)


def _pooling(parts: Parts) -> Pooling:
    name = parts.config.text("classifier_pooling", "cls")
    if name not in _POOLINGS:
        raise parts.config.refuse("classifier_pooling", "expected 'cls' or 'mean'.")
    return _POOLINGS[name]


def _classifier(parts: Parts, outputs: int | None = None) -> Linear:
    return parts.root.linear("classifier", inputs=parts.hidden, outputs=outputs)


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForSequenceClassification`."""
    return logits(_pooling(parts), *_transform(parts), _classifier(parts))


def choose(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForMultipleChoice`."""
    return scored_choice(_pooling(parts), *_transform(parts), _classifier(parts, 1))


def classify_tokens(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForTokenClassification`."""
    return logits("none", *_transform(parts), _classifier(parts))


def answer(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForQuestionAnswering`."""
    return answer_spans(*_transform(parts), _classifier(parts, 2))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForMaskedLM`."""
    scores = decoder(parts.root, "decoder", "", parts.encoder.embeddings)
    return logits("none", *_transform(parts), scores)


MODERNBERT = Family(
    model_type="modernbert",
    prefix="model",
    first="embeddings.tok_embeddings.weight",
    encoder=read_modernbert,
    heads={
        "fill-mask": fill_mask,
        "multiple-choice": choose,
        "question-answering": answer,
        "text-classification": classify,
        "token-classification": classify_tokens,
    },
)
