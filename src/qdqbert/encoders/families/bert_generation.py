"""The encoder of BERT for generation (Rothe et al. 2019, arXiv:1907.12461)."""

from __future__ import annotations

from qdqbert.encoders.families.bert import BERT_DEFAULTS, read_bert_like
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.reader import Reader


def read_bert_generation(reader: Reader) -> Encoder:
    """Read a model without token types."""
    return read_bert_like(reader, has_types=False)


BERT_GENERATION = Family(
    model_type="bert-generation",
    prefix="bert",
    encoder=read_bert_generation,
    defaults={
        **BERT_DEFAULTS,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "vocab_size": 50358,
    },
)
