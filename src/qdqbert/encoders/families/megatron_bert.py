"""Megatron's BERT (Shoeybi et al. 2019, arXiv:1909.08053)."""

from __future__ import annotations

import dataclasses
import functools

from qdqbert.encoders.families.bert import BERT_DEFAULTS, BERT_HEADS
from qdqbert.encoders.families.roberta_prelayernorm import read_norms_first
from qdqbert.encoders.family import Family
from qdqbert.encoders.layers import BERT_LAYER

_LAYER = dataclasses.replace(BERT_LAYER, attention_norm="attention.ln", norm="ln")


MEGATRON_BERT = Family(
    model_type="megatron-bert",
    prefix="bert",
    encoder=functools.partial(read_norms_first, paths=_LAYER, last="encoder.ln", has_norm=False),
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
