"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.encoders.families.bert import BERT_DEFAULTS, classify_tokens
from qdqbert.encoders.family import JINA_V5, Encoder, Family, Heads, Parts
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
from qdqbert.encoders.rotation import read_rotation, rope_parameters

# Ends of the names of its own classes, some of which have no head here.
_CODE = (
    *("Model", "PreTrainedModel", "ForMaskedLM", "ForSequenceClassification"),
    *("ForTokenClassification", "ForQuestionAnswering"),
)
_POOLINGS: Mapping[str, Pooling] = {"bos": "first", "late": "mean", "mean": "mean"}


def read_eurobert(reader: Reader) -> Encoder:
    """Read a model with RMSNorm first, gates, and keys and values that heads share."""
    config = reader.config
    sizes = Sizes.of(reader, epsilon="rms_norm_eps", head="head_dim")
    limit = config.integer("max_position_embeddings", least=1)
    rotary = read_rotation(config, sizes.head, limit, rope_parameters(config))
    return Encoder(
        embeddings=Embeddings(
            words=reader.table("embed_tokens", rows="vocab_size", width=sizes.hidden)
        ),
        layers=tuple(
            _layer(reader.at(f"layers.{index}"), sizes, rotary)
            for index in range(config.integer("num_hidden_layers", least=1))
        ),
        limit=limit,
        final_norm=_norm(reader, "norm", sizes),
    )


def _norm(at: Reader, name: str, sizes: Sizes) -> Norm:
    found = at.norm(name, size=sizes.hidden, epsilon=sizes.epsilon)
    return dataclasses.replace(found, subtracts_mean=False)


def _layer(at: Reader, sizes: Sizes, rotary: Rotary) -> Layer:
    hidden, width = sizes.hidden, sizes.heads * sizes.head
    shared = at.config.integer("num_key_value_heads", null=sizes.heads, least=1)
    if sizes.heads % shared:
        raise at.config.refuse("num_key_value_heads", f"{sizes.heads} is not a multiple of it.")

    def attention(name: str, inputs: int, outputs: int) -> Linear:
        has_bias = at.config.flag("attention_bias")
        return at.linear(f"self_attn.{name}", inputs=inputs, outputs=outputs, has_bias=has_bias)

    def inner(name: str, inputs: int, outputs: int) -> Linear:
        has_bias = at.config.flag("mlp_bias")
        return at.linear(f"mlp.{name}", inputs=inputs, outputs=outputs, has_bias=has_bias)

    def spread(name: str) -> Linear:
        """Return keys or values, repeated for each head of their group."""
        found = attention(name, hidden, shared * sizes.head)
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
            query=attention("q_proj", hidden, width),
            key=spread("k_proj"),
            value=spread("v_proj"),
            output=attention("o_proj", width, hidden),
            heads=sizes.heads,
            scale=float(sizes.head) ** -0.5,
            rotary=rotary,
        ),
        attention_residual=Residual(),
        up_norm=_norm(at, "post_attention_layernorm", sizes),
        up=inner("gate_proj", hidden, sizes.inner),
        gate=inner("up_proj", hidden, sizes.inner),
        activation=at.config.activation("hidden_act"),
        down=inner("down_proj", sizes.inner, hidden),
        residual=Residual(),
    )


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EuroBertForSequenceClassification`."""
    kind = parts.config.text("classifier_pooling")
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
    has_bias = parts.config.flag("mlp_bias")
    embeddings = parts.encoder.embeddings
    return logits("none", decoder(parts.root, "lm_head", "", embeddings, has_bias=has_bias))


EUROBERT = Family(
    model_type="eurobert",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_eurobert,
    heads=Heads(fill_mask=fill_mask, classify=classify, classify_tokens=classify_tokens),
    defaults={
        **BERT_DEFAULTS,
        "attention_bias": False,
        "classifier_pooling": "late",
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "num_key_value_heads": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    code=(JINA_V5, *(f"EuroBert{end}" for end in _CODE)),
    fields={"clf_pooling": "classifier_pooling"},
)
