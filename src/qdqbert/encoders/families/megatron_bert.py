"""Megatron's BERT (Shoeybi et al. 2019, arXiv:1909.08053)."""

from __future__ import annotations

import dataclasses

from qdqbert.encoders.families.bert import BERT_DEFAULTS, BERT_HEADS
from qdqbert.encoders.families.roberta_prelayernorm import read_norms_first
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.layers import BERT_LAYER
from qdqbert.encoders.reader import Reader

_LAYER = dataclasses.replace(BERT_LAYER, attention_norm="attention.ln", norm="ln")


def read_megatron_bert(reader: Reader) -> Encoder:
    """Read a model whose layers normalize first, without a LayerNorm of the embeddings."""
    return read_norms_first(reader, _LAYER, last="encoder.ln", has_norm=False)


MEGATRON_BERT = Family(
    model_type="megatron-bert",
    prefix="bert",
    encoder=read_megatron_bert,
    heads=BERT_HEADS,
    defaults={
        **BERT_DEFAULTS,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 29056,
    },
)
