"""RoFormer (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from qdqbert.encoders.families.bert import (
    BERT_DEFAULTS,
    bert_heads,
    fill_mask,
    pooled_heads,
    read_embeddings,
)
from qdqbert.encoders.families.electra import summary
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.layers import BERT_LAYER, Sizes, picked, read_layers
from qdqbert.encoders.model import Attention, Embeddings, Head, Rotary
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import halves

_POSITIONS = "encoder.embed_positions"


def read_roformer(reader: Reader) -> Encoder:
    """Read a model in which neighboring channels of queries and keys are rotated together."""
    config = reader.config
    sizes = Sizes.of(reader)
    if config.flag("rotary_value"):
        raise config.refuse("rotary_value", "rotated values are not supported.")
    limit = config.integer("max_position_embeddings", least=1)
    rotary = _rotary(reader, sizes.head, limit)
    order = halves(sizes.heads, sizes.head)

    def rotated(attention: Attention) -> Attention:
        query, key = (picked(each, order) for each in (attention.query, attention.key))
        return dataclasses.replace(attention, query=query, key=key, rotary=rotary)

    return Encoder(
        embeddings=_embeddings(reader, sizes),
        layers=read_layers(reader, BERT_LAYER, sizes, change=rotated),
        limit=limit,
    )


def _embeddings(reader: Reader, sizes: Sizes) -> Embeddings:
    width = reader.config.integer("embedding_size", null=sizes.hidden, least=1)
    found = read_embeddings(reader, width, sizes.epsilon, has_positions=False)
    if width == sizes.hidden:
        return found
    projection = reader.linear("embeddings_project", inputs=width, outputs=sizes.hidden)
    return dataclasses.replace(found, projection=projection)


def _rotary(reader: Reader, size: int, limit: int) -> Rotary:
    """Return the rotation of the file, or else computed in float64 as transformers does here."""
    if reader.has(f"{_POSITIONS}.weight"):
        table = reader.table(_POSITIONS, rows="max_position_embeddings", width=size).rows
        sin, cos = np.split(np.asarray(table, np.float32), [math.ceil(size / 2)], axis=1)
        return Rotary(cos=cos, sin=sin)
    frequencies = 1 / np.power(10000, np.arange(0, size, 2) / size)
    angles = np.arange(limit)[:, None] * frequencies
    return Rotary(cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32))


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `RoFormerForSequenceClassification`."""
    at = parts.root.at("classifier")
    dense = at.linear("dense", inputs=parts.hidden)
    activation = parts.config.activation("hidden_act")
    return logits("first", dense, activation, at.linear("out_proj", inputs=len(dense.bias)))


# The head of `RoFormerForMultipleChoice`.
_, choose = pooled_heads(summary)


ROFORMER = Family(
    model_type="roformer",
    prefix="roformer",
    encoder=read_roformer,
    heads=bert_heads(fill_mask, classify, choose),
    defaults={
        **BERT_DEFAULTS,
        "embedding_size": None,
        "max_position_embeddings": 1536,
        "rotary_value": False,
        "summary_activation": None,
        "summary_proj_to_labels": False,
        "summary_type": "last",
        "summary_use_proj": False,
        "vocab_size": 50000,
    },
)
