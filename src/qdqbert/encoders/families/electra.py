"""ELECTRA (Clark et al. 2020, arXiv:2003.10555)."""

from __future__ import annotations

from qdqbert.encoders.families.bert import (
    BERT_DEFAULTS,
    BERT_SITES,
    bert_heads,
    pooled_heads,
    read_bert_like,
    transform,
)
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.model import Head, Step
from qdqbert.encoders.reader import Reader


def read_electra(reader: Reader) -> Encoder:
    """Read a model whose embeddings may be narrower than its hidden states."""
    width = reader.config.integer("embedding_size", least=1)
    return read_bert_like(reader, width=width, projection="embeddings_project")


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ElectraForSequenceClassification`."""
    at = parts.root.at("classifier")
    dense = at.linear("dense", inputs=parts.hidden)
    return logits("first", dense, "gelu", at.linear("out_proj", inputs=len(dense.bias)))


def summary(parts: Parts) -> tuple[Step, ...]:
    """Return the steps of transformers' `SequenceSummary`.

    It can only take the first state: the last one is padding in most batches, which is never
    computed.
    """
    config = parts.config
    if config.text("summary_type") != "first":
        raise config.refuse("summary_type", "expected 'first'.")
    steps: list[Step] = []
    if config.flag("summary_use_proj", null=False):
        if config.flag("summary_proj_to_labels", null=False):
            raise config.refuse("summary_proj_to_labels", "expected false.")
        steps.append(parts.root.linear("sequence_summary.summary", inputs=parts.hidden))
    if config.text("summary_activation", null=""):
        steps.append(config.activation("summary_activation"))
    return tuple(steps)


# The head of `ElectraForMultipleChoice`.
_, choose = pooled_heads(summary)


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ElectraForMaskedLM`, the generator."""
    at = parts.root.at("generator_predictions")
    steps = transform(parts, at, "dense", "LayerNorm", "gelu")
    scores = decoder(parts.root, "generator_lm_head", "", parts.encoder.embeddings)
    return logits("none", *steps, scores)


ELECTRA = Family(
    model_type="electra",
    prefix="electra",
    encoder=read_electra,
    heads=bert_heads(fill_mask, classify, choose),
    defaults={
        **BERT_DEFAULTS,
        "embedding_size": 128,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "summary_activation": "gelu",
        "summary_proj_to_labels": False,
        "summary_type": "first",
        "summary_use_proj": True,
    },
    training=BERT_SITES,
)
