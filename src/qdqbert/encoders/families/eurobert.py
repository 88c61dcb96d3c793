"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.encoders.families.bert import classify_tokens
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layers import Sizes
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
from qdqbert.encoders.rotation import read_rotation

# Ends of the names of its own classes, some of which have no head here.
_CODE = (
    *("Model", "PreTrainedModel", "ForMaskedLM", "ForSequenceClassification"),
    *("ForTokenClassification", "ForQuestionAnswering"),
)
_POOLINGS: Mapping[str, Pooling] = {"bos": "first", "late": "mean", "mean": "mean"}


def read_eurobert(reader: Reader) -> Encoder:
    """Read a model with RMSNorm first, gates, and keys and values that heads share."""
    config = reader.config
    sizes = Sizes.of(reader, epsilon="rms_norm_eps", default=1e-5)
    if config.integer("head_dim", sizes.head) != sizes.head:
        raise config.refuse("head_dim", f"expected {sizes.head}.")
    limit = config.integer("max_position_embeddings")
    rotary = read_rotation(config, sizes.head, limit, theta=10_000.0)
    return Encoder(
        embeddings=Embeddings(
            words=reader.table("embed_tokens", width=sizes.hidden),
            positions=None,
            token_types=None,
            norm=None,
        ),
        layers=tuple(
            _layer(reader.at(f"layers.{index}"), sizes, rotary)
            for index in range(config.integer("num_hidden_layers"))
        ),
        limit=limit,
        final_norm=_norm(reader, "norm", sizes),
    )


def _norm(at: Reader, name: str, sizes: Sizes) -> Norm:
    found = at.norm(name, size=sizes.hidden, epsilon=sizes.epsilon)
    return dataclasses.replace(found, subtracts_mean=False)


def _layer(at: Reader, sizes: Sizes, rotary: Rotary) -> Layer:
    hidden, width = sizes.hidden, sizes.heads * sizes.head
    shared = at.config.integer("num_key_value_heads", sizes.heads)
    if not shared or sizes.heads % shared:
        raise at.config.refuse("num_key_value_heads", f"{sizes.heads} is not a multiple of it.")

    def spread(name: str) -> Linear:
        """Return keys or values, repeated for each head of their group."""
        found = at.linear(name, inputs=hidden, outputs=shared * sizes.head)
        weight = found.weight.reshape(shared, sizes.head, hidden)
        times = sizes.heads // shared
        return dataclasses.replace(
            found,
            weight=weight.repeat(times, axis=0).reshape(width, hidden),
            bias=found.bias.reshape(shared, sizes.head).repeat(times, axis=0).ravel(),
        )

    return Layer(
        attention_norm=_norm(at, "input_layernorm", sizes),
        attention=Attention(
            query=at.linear("self_attn.q_proj", inputs=hidden, outputs=width),
            key=spread("self_attn.k_proj"),
            value=spread("self_attn.v_proj"),
            output=at.linear("self_attn.o_proj", inputs=width, outputs=hidden),
            heads=sizes.heads,
            scale=float(sizes.head) ** -0.5,
            rotary=rotary,
        ),
        attention_residual=Residual(norm=None),
        up_norm=_norm(at, "post_attention_layernorm", sizes),
        up=at.linear("mlp.gate_proj", inputs=hidden, outputs=sizes.inner),
        gate=at.linear("mlp.up_proj", inputs=hidden, outputs=sizes.inner),
        activation=at.config.activation("hidden_act", "silu"),
        down=at.linear("mlp.down_proj", inputs=sizes.inner, outputs=hidden),
        residual=Residual(norm=None),
    )


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EuroBertForSequenceClassification`."""
    kind = parts.config.text("classifier_pooling", "late")
    if kind not in _POOLINGS:
        raise parts.config.refuse("classifier_pooling", f"expected one of {', '.join(_POOLINGS)}.")
    dense = parts.root.linear("dense", inputs=parts.hidden, outputs=parts.hidden)
    classifier = parts.root.linear("classifier", inputs=parts.hidden)
    steps: tuple[Step, ...] = (dense, "gelu", classifier)
    # "late" is the mean of the scores of tokens.
    count = len(steps) if kind == "late" else 0
    return logits(_POOLINGS[kind], *steps, token_steps=count)


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EuroBertForMaskedLM`."""
    return logits("none", decoder(parts.root, "lm_head", "", parts.encoder.embeddings))


EUROBERT = Family(
    model_type="eurobert",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_eurobert,
    heads={
        "fill-mask": fill_mask,
        "text-classification": classify,
        "token-classification": classify_tokens,
    },
    code=tuple(f"EuroBert{end}" for end in _CODE),
    fields={"clf_pooling": "classifier_pooling"},
)
