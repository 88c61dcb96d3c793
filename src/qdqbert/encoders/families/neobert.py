"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587), of code that is no part of transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from qdqbert.encoders.families.nomic_bert import check_expected
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layers import Sizes, picked
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
from qdqbert.encoders.rotation import halves, rotation
from qdqbert.encoders.weights import Conversion

# Fields of the code that the authors train with, and the only values of them that are read.
_EXPECTED: Mapping[str, object] = {"ngpt": False, "rms_norm": True, "rope": True}
# The code has no field for it.
_THETA = 10_000.0


def read_neobert(reader: Reader) -> Encoder:
    """Read a model that normalizes first, with gates, and with queries, keys and values joined."""
    config = reader.config
    check_expected(config, _EXPECTED)
    if config.text("hidden_act").lower() != "swiglu":
        raise config.refuse("hidden_act", "only 'swiglu' is supported.")
    sizes = Sizes.of(reader, epsilon="norm_eps")
    # As many weights as without a gate, and a multiple of 8.
    sizes = dataclasses.replace(sizes, inner=-(-(2 * sizes.inner // 3) // 8) * 8)
    if sizes.head % 2:
        raise config.refuse("num_attention_heads", f"heads of {sizes.head} channels have no pairs.")
    limit = config.integer("max_position_embeddings", least=1)
    rotary = rotation(sizes.head, _THETA, limit)
    return Encoder(
        embeddings=Embeddings(words=reader.table("encoder", rows="vocab_size", width=sizes.hidden)),
        layers=tuple(
            _layer(reader.at(f"transformer_encoder.{index}"), sizes, rotary)
            for index in range(config.integer("num_hidden_layers", least=1))
        ),
        limit=limit,
        final_norm=_norm(reader, "layer_norm", sizes),
    )


def _norm(at: Reader, name: str, sizes: Sizes) -> Norm:
    found = at.norm(name, size=sizes.hidden, epsilon=sizes.epsilon, has_bias=False)
    return dataclasses.replace(found, subtracts_mean=False)


def _layer(at: Reader, sizes: Sizes, rotary: Rotary) -> Layer:
    hidden, inner = sizes.hidden, sizes.inner

    def linear(name: str, inputs: int, outputs: int) -> Linear:
        return at.linear(name, inputs=inputs, outputs=outputs, has_bias=False)

    joined = linear("qkv", hidden, 3 * hidden)
    # Each head has its query, key and value one after another.
    rows = np.arange(3 * hidden).reshape(sizes.heads, 3, sizes.head).swapaxes(0, 1)
    # Neighboring channels of queries and keys are rotated together.
    paired, plain = halves(sizes.heads, sizes.head), np.arange(hidden)
    query, key, value = (
        dataclasses.replace(picked(joined, own.reshape(-1)[order]), first=index * hidden)
        for index, (own, order) in enumerate(zip(rows, (paired, paired, plain), strict=True))
    )
    return Layer(
        attention_norm=_norm(at, "attention_norm", sizes),
        attention=Attention(
            query=query,
            key=key,
            value=value,
            output=linear("wo", hidden, hidden),
            heads=sizes.heads,
            scale=float(sizes.head) ** -0.5,
            rotary=rotary,
        ),
        attention_residual=Residual(),
        up_norm=_norm(at, "ffn_norm", sizes),
        up=linear("ffn.w1", hidden, inner),
        gate=linear("ffn.w2", hidden, inner),
        activation="silu",
        down=linear("ffn.w3", inner, hidden),
        residual=Residual(),
    )


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `NeoBERTForSequenceClassification`."""
    dense = parts.root.linear("dense", inputs=parts.hidden, outputs=parts.hidden)
    return logits("first", dense, "tanh", parts.root.linear("classifier", inputs=parts.hidden))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `NeoBERTLMHead`."""
    return logits("none", decoder(parts.root, "decoder", "", parts.encoder.embeddings))


NEOBERT = Family(
    model_type="neobert",
    # transformers has no such model.
    is_quantized=False,
    prefix="model",
    first="encoder.weight",
    others=("dense",),
    encoder=read_neobert,
    heads=Heads(classify=classify, fill_mask=fill_mask),
    code=("NeoBERT", "NeoBERTLMHead", "NeoBERTForSequenceClassification"),
    defaults={
        **_EXPECTED,
        "hidden_act": "swiglu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 1024,
        "norm_eps": 1e-6,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "tie_word_embeddings": True,
        "vocab_size": 30522,
    },
    fields={"max_length": "max_position_embeddings"},
    # Packed and unpacked weights are read.
    conversion=Conversion(splits={".ffn.w12": (".ffn.w1", ".ffn.w2")}),
)
