"""RoBERTa (Liu et al. 2019, arXiv:1907.11692), XLM-R and CamemBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbert.encoders.families.bert import (
    BERT_DEFAULTS,
    BERT_SITES,
    bert_heads,
    choose,
    read_bert_like,
    transform,
)
from qdqbert.encoders.family import FLASH, FLASH_CODE, Encoder, Family, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.model import Head
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.weights import Conversion

# Jina's code for XLM-R, with absolute positions: jina-reranker-v2-base-multilingual.
_CONVERSION = Conversion(
    renames=(
        (r"(^|\.)emb_ln\.", r"\1embeddings.LayerNorm."),
        (r"encoder\.layers\.", "encoder.layer."),
        (r"mixer\.out_proj\.", "attention.output.dense."),
        (r"norm1\.", "attention.output.LayerNorm."),
        (r"mlp\.fc1\.", "intermediate.dense."),
        (r"mlp\.fc2\.", "output.dense."),
        (r"norm2\.", "output.LayerNorm."),
    ),
    splits={
        ".mixer.Wqkv": (".attention.self.query", ".attention.self.key", ".attention.self.value")
    },
    own=r"\.mixer\.Wqkv\.",
)

ROBERTA_DEFAULTS: Mapping[str, Any] = {**BERT_DEFAULTS, "pad_token_id": 1, "vocab_size": 50265}
"""Fields that readers use, and what they are in a config without them."""


def read_roberta(reader: Reader) -> Encoder:
    """Read a model whose positions are counted from the row after the padding's."""
    return read_bert_like(reader, padding_id=reader.config.integer("pad_token_id"))


def classify(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `RobertaForSequenceClassification`."""
    at = parts.root.at("classifier")
    dense = at.linear("dense", inputs=parts.hidden)
    return logits("first", dense, "tanh", at.linear("out_proj", inputs=len(dense.bias)))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `RobertaForMaskedLM`."""
    at = parts.root.at("lm_head")
    steps = transform(parts, at, "dense", "layer_norm", "gelu")
    return logits("none", *steps, decoder(at, "decoder", "bias", parts.encoder.embeddings))


ROBERTA_HEADS = bert_heads(fill_mask, classify, choose)

ROBERTA, XLM_ROBERTA, CAMEMBERT = (
    Family(
        model_type=name,
        prefix="roberta",
        encoder=read_roberta,
        heads=ROBERTA_HEADS,
        defaults={**ROBERTA_DEFAULTS, "vocab_size": words},
        code=FLASH_CODE if name == "xlm-roberta" else (),
        code_config=FLASH,
        conversion=_CONVERSION if name == "xlm-roberta" else None,
        positions_follow="padding",
        training=BERT_SITES,
    )
    for name, words in (("roberta", 50265), ("xlm-roberta", 30522), ("camembert", 30522))
)
