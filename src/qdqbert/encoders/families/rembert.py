"""RemBERT (Chung et al. 2020, arXiv:2010.12821)."""

from __future__ import annotations

from qdqbert.encoders.families.bert import (
    BERT_DEFAULTS,
    bert_heads,
    choose,
    classify,
    read_bert_like,
    transform,
)
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.model import Head
from qdqbert.encoders.reader import Reader


def read_rembert(reader: Reader) -> Encoder:
    """Read a model whose embeddings are projected."""
    return read_bert_like(
        reader,
        width=reader.config.integer("input_embedding_size", least=1),
        projection="encoder.embedding_hidden_mapping_in",
        always_projects=True,
    )


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `RemBertForMaskedLM`, which never shares the table of words."""
    at = parts.root.at("cls.predictions")
    activation = parts.config.activation("hidden_act")
    steps = transform(parts, at, "dense", "LayerNorm", activation)
    return logits("none", *steps, at.linear("decoder", inputs=len(steps[0].bias)))


REMBERT = Family(
    model_type="rembert",
    prefix="rembert",
    encoder=read_rembert,
    heads=bert_heads(fill_mask, classify, choose),
    defaults={
        **BERT_DEFAULTS,
        "hidden_size": 1152,
        "input_embedding_size": 256,
        "intermediate_size": 4608,
        "num_attention_heads": 18,
        "num_hidden_layers": 32,
        "output_embedding_size": 1664,
        "tie_word_embeddings": False,
        "vocab_size": 250300,
    },
)
