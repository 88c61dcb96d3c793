"""ModernBERT (Warner et al. 2024, arXiv:2412.13663).

The rotation of query and key, and the multiplication by the gate, stay in float.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import BERT_DEFAULTS
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import answer_spans, decoder, logits, scored_choice
from qdqbert.encoders.layer_sites import LayerSites, TrainingSites
from qdqbert.encoders.layers import FULL, SLIDING, Sizes, changed, kinds_of_layers
from qdqbert.encoders.model import (
    Attention,
    Embeddings,
    Head,
    Layer,
    Linear,
    Norm,
    Pooling,
    Residual,
    Rotary,
    Step,
)
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rope_settings

# transformers' fields of older files.
_THETAS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
_POOLINGS: Mapping[str, Pooling] = {"cls": "first", "mean": "mean"}


ReadProjections = Callable[[Reader, Sizes], Sequence[Linear]]
"""Reads the linear layers of queries, keys and values of a layer."""


def read_modernbert(reader: Reader) -> Encoder:
    """Read a model of transformers' class."""
    sizes = Sizes.of(reader, epsilon="norm_eps", head="head_dim")
    return read_like(reader, sizes, projections=_projections, window=_window(reader.config))


def read_like(
    reader: Reader, sizes: Sizes, *, projections: ReadProjections, window: int, causal: bool = False
) -> Encoder:
    """Read a model whose layers normalize first, rotate queries and keys, and have gates.

    `window` and `causal` are as in `Attention`, the window for some of the layers.
    """
    config = reader.config
    limit = config.integer("max_position_embeddings", least=1)
    kinds = _kinds_of_layers(config)
    rotations = {
        kind: read_rotation(config, sizes.head, limit, _rope_parameters(config, kind))
        for kind in set(kinds)
    }
    layers = tuple(
        _layer(
            reader.at(f"layers.{index}"),
            sizes,
            projections,
            is_first=index == 0,
            rotary=rotations[kind],
            window=window if kind == SLIDING else None,
            causal=causal,
        )
        for index, kind in enumerate(kinds)
    )
    at = reader.at("embeddings")
    return Encoder(
        embeddings=Embeddings(
            words=at.table("tok_embeddings", rows="vocab_size", width=sizes.hidden),
            norm=_norm(at, "norm", sizes),
        ),
        layers=layers,
        limit=limit,
        final_norm=_norm(reader, "final_norm", sizes),
    )


def _rope_parameters(config: Config, kind: str) -> Mapping[str, Any]:
    """Return the settings of the rotation of a kind of layer.

    As in transformers, `rope_scaling` changes what `rope_parameters` has for each kind.
    """
    every, scaling = (rope_settings(config, each) for each in ("rope_parameters", "rope_scaling"))
    is_known = every.keys() <= _THETAS.keys() and (not every or not scaling or kind in every)
    own = every.get(kind, {"rope_type": "default"})
    if not is_known or not isinstance(own, dict):
        raise config.refuse("rope_parameters", f"expected settings for {FULL} and {SLIDING}.")
    return {"rope_theta": config.values[_THETAS[kind]], **own, **scaling}


def _window(config: Config) -> int:
    """Return the number of tokens on each side that a token attends to."""
    # transformers sets the whole window by this name of its half.
    if "sliding_window" in config.values:
        return config.integer("sliding_window")
    return config.integer("local_attention") // 2


def _kinds_of_layers(config: Config) -> list[str]:
    count = config.integer("num_hidden_layers", least=1)
    if "layer_types" in config:
        return kinds_of_layers(config, [FULL] * count)
    every = config.integer("global_attn_every_n_layers", least=1)
    return [SLIDING if index % every else FULL for index in range(count)]


def _norm(at: Reader, name: str, sizes: Sizes) -> Norm:
    has_bias = at.config.flag("norm_bias")
    return at.norm(name, size=sizes.hidden, epsilon=sizes.epsilon, has_bias=has_bias)


def _projections(at: Reader, sizes: Sizes) -> Sequence[Linear]:
    hidden, has_bias = sizes.hidden, at.config.flag("attention_bias")
    both = at.linear("attn.Wqkv", inputs=hidden, outputs=3 * hidden, has_bias=has_bias)
    return _split(both, 3)


def _layer(
    at: Reader,
    sizes: Sizes,
    projections: ReadProjections,
    *,
    is_first: bool,
    rotary: Rotary,
    window: int | None,
    causal: bool,
) -> Layer:
    hidden, inner = sizes.hidden, sizes.inner

    def linear(name: str, flag: str, inputs: int, outputs: int) -> Linear:
        has_bias = at.config.flag(flag)
        return at.linear(name, inputs=inputs, outputs=outputs, has_bias=has_bias)

    query, key, value = projections(at, sizes)
    up, gate = _split(linear("mlp.Wi", "mlp_bias", hidden, 2 * inner), 2)
    attention = Attention(
        query=query,
        key=key,
        value=value,
        output=linear("attn.Wo", "attention_bias", hidden, hidden),
        heads=sizes.heads,
        scale=float(sizes.head) ** -0.5,
        causal=causal,
        rotary=rotary,
        window=window,
    )
    return Layer(
        # The first layer reads the normalized embeddings.
        attention_norm=None if is_first else _norm(at, "attn_norm", sizes),
        attention=attention,
        attention_residual=Residual(),
        up_norm=_norm(at, "mlp_norm", sizes),
        up=up,
        gate=gate,
        activation=at.config.activation("hidden_activation"),
        down=linear("mlp.Wo", "mlp_bias", inner, hidden),
        residual=Residual(),
    )


def _split(linear: Linear, parts: int) -> list[Linear]:
    """Split a linear layer into several, by its outputs."""
    size = len(linear.bias) // parts

    def part(start: int) -> Linear:
        place = slice(start, start + size)
        found = changed(linear, lambda weight: weight[place], linear.bias[place])
        return dataclasses.replace(found, first=start)

    return [part(start) for start in range(0, parts * size, size)]


def transform(parts: Parts) -> tuple[Step, ...]:
    """Return the first steps of all heads."""
    config, hidden = parts.config, parts.hidden
    has_bias = config.flag("classifier_bias")
    at = parts.root.at("head")
    dense = at.linear("dense", inputs=hidden, outputs=hidden, has_bias=has_bias)
    sizes = Sizes.of(parts.body, epsilon="norm_eps")
    return dense, config.activation("classifier_activation"), _norm(at, "norm", sizes)


def _pooling(parts: Parts) -> Pooling:
    name = parts.config.text("classifier_pooling")
    if name not in _POOLINGS:
        raise parts.config.refuse("classifier_pooling", "expected 'cls' or 'mean'.")
    return _POOLINGS[name]


def _classifier(parts: Parts, outputs: int | None = None) -> Linear:
    return parts.root.linear("classifier", inputs=parts.hidden, outputs=outputs)


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForSequenceClassification`."""
    return logits(_pooling(parts), *transform(parts), _classifier(parts))


def choose(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForMultipleChoice`."""
    return scored_choice(_pooling(parts), *transform(parts), _classifier(parts, 1))


def classify_tokens(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForTokenClassification`."""
    return logits("none", *transform(parts), _classifier(parts))


def answer(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForQuestionAnswering`."""
    return answer_spans(*transform(parts), _classifier(parts, 2))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ModernBertForMaskedLM`."""
    has_bias = parts.config.flag("decoder_bias")
    scores = decoder(parts.root, "decoder", "", parts.encoder.embeddings, has_bias=has_bias)
    return logits("none", *transform(parts), scores)


MODERNBERT = Family(
    model_type="modernbert",
    prefix="model",
    first="embeddings.tok_embeddings.weight",
    encoder=read_modernbert,
    heads=Heads(
        fill_mask=fill_mask,
        choose=choose,
        answer=answer,
        classify=classify,
        classify_tokens=classify_tokens,
    ),
    defaults={
        **BERT_DEFAULTS,
        "attention_bias": False,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_pooling": "cls",
        "decoder_bias": True,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "head_dim": None,
        "hidden_activation": "gelu",
        "intermediate_size": 1152,
        "layer_types": None,
        "local_attention": 128,
        "local_rope_theta": 10_000.0,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "norm_bias": False,
        "norm_eps": 1e-5,
        "num_hidden_layers": 22,
        "vocab_size": 50368,
    },
    # 16 sites: 4 linear layers x 2, 4 inputs of matmuls, 2 residual adds x 2.
    training=TrainingSites(
        layers="layers",
        layer=LayerSites(
            linear_layers={
                "norm": ("attn.Wqkv", "mlp.Wi"),
                "attention": ("attn.Wo",),
                "gate": ("mlp.Wo",),
            },
            attention="attn",
            branches=("attn", "mlp"),
        ),
        tables=("tok_embeddings",),
    ),
)
