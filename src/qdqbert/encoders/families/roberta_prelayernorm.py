"""RoBERTa with LayerNorms before the parts of a layer (Ott et al. 2019, arXiv:1904.01038)."""

from __future__ import annotations

import dataclasses

from qdqbert.encoders.families.bert import read_bert_like
from qdqbert.encoders.families.roberta import ROBERTA_DEFAULTS, ROBERTA_HEADS
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.layers import BERT_LAYER, LayerPaths, Sizes
from qdqbert.encoders.reader import Reader

_LAYER = dataclasses.replace(
    BERT_LAYER, attention_norm="attention.LayerNorm", norm="intermediate.LayerNorm"
)


def read_roberta_prelayernorm(reader: Reader) -> Encoder:
    """Read a model whose layers normalize first."""
    padding_id = reader.config.integer("pad_token_id")
    return read_norms_first(reader, _LAYER, last="LayerNorm", padding_id=padding_id)


def read_norms_first(
    reader: Reader,
    paths: LayerPaths,
    *,
    last: str,
    padding_id: int | None = None,
    has_norm: bool = True,
) -> Encoder:
    """Read a model with BERT's embeddings, whose layers normalize first.

    `last` is the path of the LayerNorm after the last layer. For the others, see `read_bert_like`.
    """
    sizes = Sizes.of(reader)
    return dataclasses.replace(
        read_bert_like(
            reader, padding_id=padding_id, has_norm=has_norm, paths=paths, norms_first=True
        ),
        final_norm=reader.norm(last, size=sizes.hidden, epsilon=sizes.epsilon),
    )


ROBERTA_PRELAYERNORM = Family(
    model_type="roberta-prelayernorm",
    prefix="roberta_prelayernorm",
    encoder=read_roberta_prelayernorm,
    heads=ROBERTA_HEADS,
    defaults=ROBERTA_DEFAULTS,
)
