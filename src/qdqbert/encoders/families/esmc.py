"""ESM Cambrian (ESM Team 2024), a model of proteins."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from qdqbert.encoders.families.llama import ATTENTION, LLAMA_DEFAULTS, MLP, sizes_of
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.layers import Sizes, centered, changed
from qdqbert.encoders.model import (
    Attention,
    Embeddings,
    Head,
    Layer,
    Linear,
    Norm,
    Residual,
    Rotary,
)
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rope_parameters

# transformers has no field for it.
_EPSILON = 1e-5
# Layers of the model whose parts are added as they are.
_LAYERS = 36


def read_esmc(reader: Reader) -> Encoder:
    """Read a model that normalizes queries and keys over all heads, and scales what it adds."""
    config = reader.config
    values = {**config.values, "rms_norm_eps": _EPSILON}
    sizes = sizes_of(dataclasses.replace(reader, config=dataclasses.replace(config, values=values)))
    if sizes.heads * sizes.head != sizes.hidden:
        raise config.refuse("head_dim", "all heads together have to be as wide as the states.")
    if config.integer("num_key_value_heads", null=sizes.heads) != sizes.heads:
        raise config.refuse("num_key_value_heads", f"expected {sizes.heads}, one for each head.")
    limit = config.integer("max_position_embeddings", least=1)
    rotary = read_rotation(config, sizes.head, limit, rope_parameters(config))
    count = config.integer("num_hidden_layers", least=1)
    return Encoder(
        embeddings=Embeddings(
            words=reader.table("embed_tokens", rows="vocab_size", width=sizes.hidden)
        ),
        layers=tuple(
            _layer(reader.at(f"layers.{index}"), sizes, rotary, math.sqrt(_LAYERS / count))
            for index in range(count)
        ),
        limit=limit,
        final_norm=_norm(reader, "norm", sizes, has_bias=False),
    )


def _norm(at: Reader, name: str, sizes: Sizes, *, has_bias: bool = True) -> Norm:
    return at.norm(name, size=sizes.hidden, epsilon=sizes.epsilon, has_bias=has_bias)


def _scaled(linear: Linear, factor: float) -> Linear:
    by = np.float32(factor)
    return changed(linear, lambda weight: weight * by, linear.bias * by)


def _layer(at: Reader, sizes: Sizes, rotary: Rotary, factor: float) -> Layer:
    flags = {
        **dict.fromkeys(ATTENTION, at.config.flag("attention_bias")),
        **dict.fromkeys(MLP, at.config.flag("mlp_bias")),
    }

    def linear(path: str, inputs: int, outputs: int) -> Linear:
        has_bias = flags[path.rpartition(".")[2]]
        return at.linear(path, inputs=inputs, outputs=outputs, has_bias=has_bias)

    hidden, inner = sizes.hidden, sizes.inner
    query, key, value = (
        linear(f"self_attn.{each}_proj", hidden, hidden) for each in ("q", "k", "v")
    )
    # A LayerNorm of a layer is an RMSNorm of the same layer with centered outputs.
    query_norm, key_norm = (
        dataclasses.replace(
            _norm(at, f"self_attn.{each}_norm", sizes, has_bias=False), subtracts_mean=False
        )
        for each in ("q", "k")
    )
    return Layer(
        attention_norm=_norm(at, "input_layernorm", sizes),
        attention=Attention(
            query=centered(query),
            key=centered(key),
            value=value,
            output=_scaled(linear("self_attn.o_proj", hidden, hidden), factor),
            heads=sizes.heads,
            scale=float(sizes.head) ** -0.5,
            rotary=rotary,
            query_norm=query_norm,
            key_norm=key_norm,
        ),
        attention_residual=Residual(),
        up_norm=_norm(at, "post_attention_layernorm", sizes),
        up=linear("mlp.gate_proj", hidden, inner),
        gate=linear("mlp.up_proj", hidden, inner),
        activation=at.config.activation("hidden_act"),
        down=_scaled(linear("mlp.down_proj", inner, hidden), factor),
        residual=Residual(),
    )


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EsmcForSequenceClassification`."""
    at, hidden = parts.root.at("classifier"), parts.hidden
    dense = at.linear("dense", inputs=hidden, outputs=hidden)
    return logits("first", dense, "tanh", at.linear("out_proj", inputs=hidden))


def classify_tokens(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EsmcForTokenClassification`."""
    return logits("none", parts.root.linear("score", inputs=parts.hidden))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EsmcForMaskedLM`, whose decoder has weights of its own."""
    at, hidden = parts.root.at("lm_head"), parts.hidden
    rows = len(parts.encoder.embeddings.words.rows)
    return logits(
        "none",
        at.linear("dense", inputs=hidden, outputs=hidden),
        "gelu",
        at.norm("layer_norm", size=hidden, epsilon=_EPSILON),
        at.linear("decoder", inputs=hidden, outputs=rows),
    )


ESMC = Family(
    model_type="esmc",
    prefix="esmc",
    first="embed_tokens.weight",
    encoder=read_esmc,
    heads=Heads(classify=classify, classify_tokens=classify_tokens, fill_mask=fill_mask),
    defaults={
        **{name: each for name, each in LLAMA_DEFAULTS.items() if name != "rms_norm_eps"},
        "attention_bias": False,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "mlp_bias": False,
        "num_attention_heads": 40,
        "num_hidden_layers": 80,
        "vocab_size": 64,
    },
)
