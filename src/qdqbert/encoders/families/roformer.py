"""RoFormer (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.families.bert import bert_heads, fill_mask, pooled_heads
from qdqbert.encoders.families.electra import summary
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.layers import BERT_LAYER, Sizes, read_layers
from qdqbert.encoders.model import Attention, Embeddings, Head, Linear, Rotary
from qdqbert.encoders.reader import Reader


def read_roformer(reader: Reader) -> Encoder:
    """Read a model in which neighboring channels of queries and keys are rotated together."""
    config = reader.config
    sizes = Sizes.of(reader)
    if config.flag("rotary_value", False):
        raise config.refuse("rotary_value", "rotated values are not supported.")
    limit = config.integer("max_position_embeddings", 1536)
    rotary = _rotation(sizes.head, limit)
    order = _halves(sizes.heads, sizes.head)

    def rotated(attention: Attention) -> Attention:
        query, key = (_reordered(each, order) for each in (attention.query, attention.key))
        return dataclasses.replace(attention, query=query, key=key, rotary=rotary)

    return Encoder(
        embeddings=_embeddings(reader, sizes),
        layers=read_layers(reader, BERT_LAYER, sizes, change=rotated),
        limit=limit,
        has_token_types=config.integer("type_vocab_size", 2) > 1,
    )


def _embeddings(reader: Reader, sizes: Sizes) -> Embeddings:
    at = reader.at("embeddings")
    width = reader.config.integer("embedding_size", sizes.hidden)
    is_narrow = width != sizes.hidden
    return Embeddings(
        words=at.table("word_embeddings", width=width),
        positions=None,
        token_types=at.table("token_type_embeddings", width=width),
        norm=at.norm("LayerNorm", size=width, epsilon=sizes.epsilon),
        projection=reader.linear("embeddings_project", inputs=width, outputs=sizes.hidden)
        if is_narrow
        else None,
    )


def _rotation(size: int, limit: int) -> Rotary:
    """Return the rotation, computed in float64 as transformers does here."""
    frequencies = 1 / np.power(10000, np.arange(0, size, 2) / size)
    angles = np.arange(limit)[:, None] * frequencies
    return Rotary(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))


def _halves(heads: int, size: int) -> NDArray[np.intp]:
    """Return the order of channels in which the even ones of a head come first."""
    own = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])
    return np.asarray(np.add.outer(np.arange(heads) * size, own).ravel())


def _reordered(linear: Linear, order: NDArray[np.intp]) -> Linear:
    """Return a linear layer whose outputs are in another order, the same for queries and keys."""
    return dataclasses.replace(linear, weight=linear.weight[order], bias=linear.bias[order])


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `RoFormerForSequenceClassification`."""
    at = parts.root.at("classifier")
    dense = at.linear("dense", inputs=parts.hidden)
    activation = parts.config.activation("hidden_act", "gelu")
    return logits("first", dense, activation, at.linear("out_proj", inputs=len(dense.bias)))


# The head of `RoFormerForMultipleChoice`.
_, choose = pooled_heads(summary("last", projects=False, activation=""))


ROFORMER = Family(
    model_type="roformer",
    prefix="roformer",
    encoder=read_roformer,
    heads=bert_heads(fill_mask, classify, choose),
)
