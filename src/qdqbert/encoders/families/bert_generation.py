"""The encoder of BERT for generation (Rothe et al. 2019, arXiv:1907.12461)."""

from __future__ import annotations

import functools

from qdqbert.encoders.families.bert import BERT_DEFAULTS, read_bert_like
from qdqbert.encoders.family import Family

BERT_GENERATION = Family(
    model_type="bert-generation",
    prefix="bert",
    encoder=functools.partial(read_bert_like, has_types=False),
    defaults={
        **BERT_DEFAULTS,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 50358,
    },
)
