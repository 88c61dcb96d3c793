"""MosaicBERT (Portes et al. 2023, arXiv:2312.17482), and DNABERT-2: BERT with ALiBi and gates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.encoders.families import bert
from qdqbert.encoders.families.jina_bert import CONVERSION, read_jina_bert
from qdqbert.encoders.families.nomic_bert import check_expected
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import logits
from qdqbert.encoders.model import Head, Norm
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.weights import Conversion

# Fields of code that derives from it, as M2-BERT's has them, and the only values that are read.
_EXPECTED: Mapping[str, object] = {
    "monarch_mixer_sequence_mixing": False,
    "normalization": "layernorm",
    "pool_all": False,
    "use_glu_mlp": True,
    "use_monarch_mlp": False,
    "use_positional_encodings": False,
}

_LIMIT = 2048
"""Tokens of the longest text. The code has no limit, and published models are for 512."""


def read_mosaic_bert(reader: Reader) -> Encoder:
    """Read a model like Jina's, for longer texts than the config says."""
    check_expected(reader.config, _EXPECTED)
    named = ("alibi_starting_size", "max_position_embeddings")
    return read_jina_bert(reader, limit=max(_LIMIT, *map(reader.config.integer, named)))


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `BertForMaskedLM`, whose LayerNorm has an epsilon of its own."""
    (head,) = bert.fill_mask(parts)
    steps = (
        dataclasses.replace(each, epsilon=1e-12) if isinstance(each, Norm) else each
        for each in head.steps
    )
    return logits("none", *steps)


MOSAIC_BERT = Family(
    model_type="mosaic-bert",
    # transformers has no such model.
    is_quantized=False,
    prefix="bert",
    encoder=read_mosaic_bert,
    heads=Heads(classify=bert.classify, fill_mask=fill_mask),
    code=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
    defaults={
        **bert.BERT_DEFAULTS,
        **_EXPECTED,
        "alibi_starting_size": 512,
        "feed_forward_type": "geglu",
    },
    conversion=Conversion(
        renames=CONVERSION.renames,
        splits={**CONVERSION.splits, ".self.Wqkv": (".self.query", ".self.key", ".self.value")},
    ),
)
