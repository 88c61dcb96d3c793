"""DeBERTa, the first version (He et al. 2020, arXiv:2006.03654)."""

from __future__ import annotations

import math

import numpy as np

from qdqbert.encoders.families.bert import answer, classify_tokens
from qdqbert.encoders.families.deberta_v2 import (
    DEBERTA_DEFAULTS,
    classify,
    fill_mask,
    product_kinds,
    read_deberta_embeddings,
    relative_positions,
)
from qdqbert.encoders.family import Encoder, Family, Heads
from qdqbert.encoders.layers import BERT_LAYER, Sizes
from qdqbert.encoders.model import Attention, Floats, Layer, Linear, Residual
from qdqbert.encoders.reader import Reader


def read_deberta(reader: Reader) -> Encoder:
    """Read a model with one linear layer for queries, keys and values."""
    config = reader.config
    sizes = Sizes.of(reader)
    if config.flag("talking_head", null=False):
        raise config.refuse("talking_head", "products between heads are not supported.")
    limit = config.integer("max_position_embeddings", least=1)
    positions = None
    if config.flag("relative_attention"):
        span = config.integer("max_relative_positions", least=-1)
        rows = 2 * (span if span >= 1 else limit)
        positions = reader.tensor("encoder.rel_embeddings.weight", (rows, sizes.hidden))
    return Encoder(
        embeddings=read_deberta_embeddings(reader, sizes),
        layers=tuple(
            _layer(reader.at(f"encoder.layer.{index}"), sizes, positions, limit)
            for index in range(config.integer("num_hidden_layers", least=1))
        ),
        limit=limit,
    )


def _layer(at: Reader, sizes: Sizes, positions: Floats | None, limit: int) -> Layer:
    hidden = sizes.hidden
    own = at.at("attention.self")
    # The outputs of each head are its query, its key and its value.
    joined = own.tensor("in_proj.weight", (3 * hidden, hidden))
    by_head = joined.reshape(sizes.heads, 3, sizes.head, hidden).transpose(1, 0, 2, 3)
    query, key, value = by_head.reshape(3, hidden, hidden)

    def linear(name: str, weight: Floats, bias: str | None) -> Linear:
        found = at.zeros(hidden) if bias is None else own.tensor(bias, (hidden,))
        # The model has one module for all three, whose outputs are in another order.
        module = f"{own.module}{name}"
        return Linear(weight=weight, bias=found, module=module)

    kinds = product_kinds(at)
    relative = None
    if positions is not None and kinds:
        relative = relative_positions(
            positions,
            keys=own.linear("pos_proj", inputs=hidden) if "c2p" in kinds else None,
            queries=own.linear("pos_q_proj", inputs=hidden) if "p2c" in kinds else None,
            heads=sizes.heads,
            buckets=np.arange(limit - 1, -limit, -1),
        )
    paths, epsilon = BERT_LAYER, sizes.epsilon
    return Layer(
        attention=Attention(
            query=linear("query", query, "q_bias"),
            key=linear("key", key, None),
            value=linear("value", value, "v_bias"),
            output=at.linear(paths.output, inputs=hidden, outputs=hidden),
            heads=sizes.heads,
            scale=1 / math.sqrt(sizes.head * (1 + len(kinds))),
            relative=relative,
        ),
        attention_residual=Residual(
            norm=at.norm(paths.attention_norm, size=hidden, epsilon=epsilon)
        ),
        up=at.linear(paths.up, inputs=hidden, outputs=sizes.inner),
        activation=at.config.activation("hidden_act"),
        down=at.linear(paths.down, inputs=sizes.inner, outputs=hidden),
        residual=Residual(norm=at.norm(paths.norm, size=hidden, epsilon=epsilon)),
    )


DEBERTA = Family(
    model_type="deberta",
    prefix="deberta",
    masks_queries=True,
    encoder=read_deberta,
    heads=Heads(
        fill_mask=fill_mask, answer=answer, classify=classify, classify_tokens=classify_tokens
    ),
    defaults={**DEBERTA_DEFAULTS, "talking_head": False},
)
