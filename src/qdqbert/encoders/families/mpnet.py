"""MPNet (Song et al. 2020, arXiv:2004.09297).

Its table of relative positions stays in float: 32 rows of a bias that is added to the scores.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from qdqbert.encoders.families.bert import BERT_DEFAULTS, read_embeddings
from qdqbert.encoders.families.roberta import ROBERTA_HEADS
from qdqbert.encoders.families.t5 import buckets_of
from qdqbert.encoders.family import Encoder, Family, longest_text
from qdqbert.encoders.layer_sites import LayerSites, TrainingSites
from qdqbert.encoders.layers import BERT_LAYER, Sizes, read_layers
from qdqbert.encoders.model import Floats
from qdqbert.encoders.reader import Reader

# transformers does not read `pad_token_id` here.
_PADDING_ID = 1
_FARTHEST = 128
_LAYER = dataclasses.replace(
    BERT_LAYER,
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)


def read_mpnet(reader: Reader) -> Encoder:
    """Read a model, whose layers share a bias of the scores for each distance of two tokens."""
    sizes = Sizes.of(reader)
    embeddings = read_embeddings(
        reader, sizes.hidden, sizes.epsilon, padding_id=_PADDING_ID, has_types=False
    )
    limit = longest_text(embeddings)
    bias = _position_bias(reader, sizes.heads, limit)
    layers = read_layers(
        reader,
        _LAYER,
        sizes,
        change=lambda attention: dataclasses.replace(attention, position_bias=bias),
    )
    return Encoder(embeddings=embeddings, layers=layers, limit=limit)


def _position_bias(reader: Reader, heads: int, limit: int) -> Floats:
    """Return the bias for each distance, from a key far before on, `(heads, 2 * limit - 1)`."""
    rows = "relative_attention_num_buckets"
    table = reader.table("encoder.relative_attention_bias", rows=rows, width=heads).rows
    # transformers reads this many rows, whatever the config says.
    buckets = 32
    if len(table) < buckets:
        raise reader.config.refuse(rows, f"needs {buckets}.")
    return np.ascontiguousarray(
        table[buckets_of(np.arange(1 - limit, limit), buckets, _FARTHEST)].T
    )


MPNET = Family(
    model_type="mpnet",
    prefix="mpnet",
    encoder=read_mpnet,
    heads=ROBERTA_HEADS,
    defaults={
        **BERT_DEFAULTS,
        "relative_attention_num_buckets": 32,
        "vocab_size": 30527,
    },
    positions_follow=_PADDING_ID,
    training=TrainingSites(
        layer=LayerSites.of(_LAYER, residual_outputs=("output",), branches=("attention.attn",))
    ),
)
