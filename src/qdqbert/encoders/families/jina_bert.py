"""Jina Embeddings v2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi and gates.

The model for code (jina-bert-v2-qk-post-norm) also normalizes queries and keys, and adds the states
that an attention reads twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from qdqbert.encoders.families.bert import BERT_DEFAULTS, BERT_HEADS, read_embeddings
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.layers import BERT_LAYER, Sizes, centered, read_layer
from qdqbert.encoders.model import Activation, Attention, Floats, Layer
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.weights import Conversion

# Activation functions of the kinds of feed-forward parts.
_ACTIVATIONS: Mapping[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
CONVERSION = Conversion(
    renames=(
        (r"mlp\.(wo|down_layer)\.", "output.dense."),
        (r"(mlp\.layernorm|layer_norm_2)\.", "output.LayerNorm."),
    ),
    splits={
        ".mlp.gated_layers": (".intermediate.dense", ".intermediate.gate"),
        # The second half is the one that is activated.
        ".mlp.up_gated_layer": (".intermediate.gate", ".intermediate.dense"),
    },
)
"""Names of the tensors, and BERT's."""

_LAYER = dataclasses.replace(BERT_LAYER, gate="intermediate.gate")


def read_jina_bert(reader: Reader, *, limit: int | None = None) -> Encoder:
    """Read a model with ALiBi: scores fall with the distance of two tokens.

    `limit` is the longest text in tokens, by default as the config says.
    """
    config = reader.config
    sizes = Sizes.of(reader)
    kind = config.text("feed_forward_type")
    if kind not in _ACTIVATIONS:
        raise config.refuse("feed_forward_type", f"expected one of {', '.join(_ACTIVATIONS)}.")
    limit = limit or config.integer("max_position_embeddings", least=1)
    bias = alibi(sizes.heads, limit)

    def layer(index: int) -> Layer:
        at = reader.at(f"encoder.layer.{index}")

        def biased(attention: Attention) -> Attention:
            return dataclasses.replace(
                _with_norms(at.at("attention.self"), attention, sizes), position_bias=bias
            )

        found = read_layer(at, _LAYER, sizes, activation=_ACTIVATIONS[kind], change=biased)
        if not at.has("layer_norm_1.weight"):
            return found
        again = at.norm("layer_norm_1", size=sizes.hidden, epsilon=sizes.epsilon)
        residual = dataclasses.replace(found.attention_residual, again=again)
        return dataclasses.replace(found, attention_residual=residual)

    return Encoder(
        embeddings=read_embeddings(reader, sizes.hidden, sizes.epsilon, has_positions=False),
        layers=tuple(layer(index) for index in range(config.integer("num_hidden_layers", least=1))),
        limit=limit,
    )


def _with_norms(at: Reader, attention: Attention, sizes: Sizes) -> Attention:
    """Return the attention with LayerNorms of queries and keys, if the file has them."""
    if not at.has("layer_norm_q.weight"):
        return attention
    # A LayerNorm is an RMSNorm of an input with mean 0.
    query_norm, key_norm = (
        dataclasses.replace(
            at.norm(name, size=sizes.hidden, epsilon=sizes.epsilon), subtracts_mean=False
        )
        for name in ("layer_norm_q", "layer_norm_k")
    )
    return dataclasses.replace(
        attention,
        query=centered(attention.query),
        key=centered(attention.key),
        query_norm=query_norm,
        key_norm=key_norm,
    )


def alibi(heads: int, limit: int) -> Floats:
    """Return ALiBi's bias of the scores, `(heads, 2 * limit - 1)`.

    Source: Press et al. 2021, arXiv:2108.12409, for both directions.
    """
    distances = np.abs(np.arange(1 - limit, limit)).astype(np.float32)
    return -np.array(_slopes(heads), np.float32)[:, None] * distances


def _slopes(heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    start = 2.0 ** (-8 / power)
    own = [start ** (index + 1) for index in range(power)]
    # As the authors' code, which takes every other slope of twice as many heads for the rest.
    return own if power == heads else own + _slopes(2 * power)[::2][: heads - power]


JINA_BERT = Family(
    model_type="jina-bert",
    # transformers has no such model.
    is_quantized=False,
    prefix="bert",
    encoder=read_jina_bert,
    heads=BERT_HEADS,
    defaults={**BERT_DEFAULTS, "feed_forward_type": "original"},
    code=("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"),
    conversion=CONVERSION,
)
