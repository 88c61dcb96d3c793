"""XLM-R XL (Goyal et al. 2021, arXiv:2105.00572)."""

from __future__ import annotations

import dataclasses

from qdqbert.encoders.families.roberta import ROBERTA_HEADS
from qdqbert.encoders.families.roberta_prelayernorm import read_norms_first
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.layers import BERT_LAYER
from qdqbert.encoders.reader import Reader

_LAYER = dataclasses.replace(
    BERT_LAYER, attention_norm="attention.self_attn_layer_norm", norm="LayerNorm"
)


def read_xlm_roberta_xl(reader: Reader) -> Encoder:
    """Read a model whose layers normalize first, without a LayerNorm of the embeddings."""
    padding_id = reader.config.integer("pad_token_id", 1)
    return read_norms_first(reader, _LAYER, last="encoder.LayerNorm", padding_id=padding_id)


XLM_ROBERTA_XL = Family(
    model_type="xlm-roberta-xl", prefix="roberta", encoder=read_xlm_roberta_xl, heads=ROBERTA_HEADS
)
