"""Jina Embeddings v2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi and gates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from qdqbert.encoders.families.bert import BERT_HEADS
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.layers import BERT_LAYER, Sizes, read_layer
from qdqbert.encoders.model import Activation, Attention, Embeddings, Floats
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.weights import Conversion

# Activation functions of the kinds of feed-forward parts.
_ACTIVATIONS: Mapping[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
_CONVERSION = Conversion(
    renames=((r"mlp\.wo\.", "output.dense."), (r"mlp\.layernorm\.", "output.LayerNorm.")),
    splits={".mlp.gated_layers": (".intermediate.dense", ".intermediate.gate")},
)
_LAYER = dataclasses.replace(BERT_LAYER, gate="intermediate.gate")


def read_jina_bert(reader: Reader) -> Encoder:
    """Read a model whose scores get lower with the distance of two tokens."""
    config = reader.config
    sizes = Sizes.of(reader)
    kind = config.text("feed_forward_type", "original")
    if kind not in _ACTIVATIONS:
        raise config.refuse("feed_forward_type", f"expected one of {', '.join(_ACTIVATIONS)}.")
    first = reader.at("encoder.layer.0.attention.self")
    if first.has("layer_norm_q.weight"):
        raise config.refuse("architectures", "LayerNorms of queries and keys are not supported.")
    limit = config.integer("max_position_embeddings")
    bias = alibi(sizes.heads, limit)

    def biased(attention: Attention) -> Attention:
        return dataclasses.replace(attention, position_bias=bias)

    at = reader.at("embeddings")
    return Encoder(
        embeddings=Embeddings(
            words=at.table("word_embeddings", width=sizes.hidden),
            positions=None,
            token_types=at.table("token_type_embeddings", width=sizes.hidden),
            norm=at.norm("LayerNorm", size=sizes.hidden, epsilon=sizes.epsilon),
        ),
        layers=tuple(
            read_layer(
                reader.at(f"encoder.layer.{index}"),
                _LAYER,
                sizes,
                activation=_ACTIVATIONS[kind],
                change=biased,
            )
            for index in range(config.integer("num_hidden_layers"))
        ),
        limit=limit,
        has_token_types=config.integer("type_vocab_size", 2) > 1,
    )


def alibi(heads: int, limit: int) -> Floats:
    """Return what ALiBi adds to the scores, `(heads, 2 * limit - 1)`.

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
    prefix="bert",
    encoder=read_jina_bert,
    heads=BERT_HEADS,
    code=("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"),
    conversion=_CONVERSION,
)
