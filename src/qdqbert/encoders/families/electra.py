"""ELECTRA (Clark et al. 2020, arXiv:2003.10555)."""

from __future__ import annotations

from collections.abc import Callable

from qdqbert.encoders.families.bert import (
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
    width = reader.config.integer("embedding_size", 128)
    return read_bert_like(reader, width=width, projection="embeddings_project")


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `ElectraForSequenceClassification`."""
    at = parts.root.at("classifier")
    dense = at.linear("dense", inputs=parts.hidden)
    return logits("first", dense, "gelu", at.linear("out_proj", inputs=len(dense.bias)))


def summary(kind: str, *, projects: bool, activation: str) -> Callable[[Parts], tuple[Step, ...]]:
    """Return a reader of the steps of transformers' `SequenceSummary`.

    Args:
        kind: Which state it takes, if the config does not say. Only the first one can be taken: the
            last one is padding in most batches, which is never computed.
        projects: Whether it has a linear layer, if the config does not say.
        activation: Name of its activation function, if the config does not say; empty for none.
    """

    def read(parts: Parts) -> tuple[Step, ...]:
        config = parts.config
        if (found := config.text("summary_type", kind)) != "first":
            raise config.refuse("summary_type", f"expected 'first', and it is {found!r}.")
        steps: list[Step] = []
        if config.flag("summary_use_proj", projects):
            steps.append(parts.root.linear("sequence_summary.summary", inputs=parts.hidden))
        if config.text("summary_activation", activation):
            steps.append(config.activation("summary_activation", activation))
        return tuple(steps)

    return read


# The head of `ElectraForMultipleChoice`.
_, choose = pooled_heads(summary("first", projects=True, activation="gelu"))


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
)
