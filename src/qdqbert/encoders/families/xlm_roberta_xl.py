"""XLM-R XL (Goyal et al. 2021, arXiv:2105.00572)."""

from __future__ import annotations

import dataclasses

from qdqbert.encoders.families.roberta import ROBERTA_DEFAULTS, ROBERTA_HEADS
from qdqbert.encoders.families.roberta_prelayernorm import read_norms_first
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.layers import BERT_LAYER
from qdqbert.encoders.reader import Reader

_LAYER = dataclasses.replace(
    BERT_LAYER, attention_norm="attention.self_attn_layer_norm", norm="LayerNorm"
)


def read_xlm_roberta_xl(reader: Reader) -> Encoder:
    """Read a model whose layers normalize first, without a LayerNorm of the embeddings."""
    padding_id = reader.config.integer("pad_token_id")
    last = "encoder.LayerNorm"
    return read_norms_first(reader, _LAYER, last=last, padding_id=padding_id, has_norm=False)


XLM_ROBERTA_XL = Family(
    model_type="xlm-roberta-xl",
    prefix="roberta",
    encoder=read_xlm_roberta_xl,
    heads=ROBERTA_HEADS,
    defaults={
        **ROBERTA_DEFAULTS,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "type_vocab_size": 1,
        "vocab_size": 250880,
    },
)
