"""data2vec for text (Baevski et al. 2022, arXiv:2202.03555), with RoBERTa's layout."""

from __future__ import annotations

from qdqbert.encoders.families.roberta import ROBERTA_DEFAULTS, ROBERTA_HEADS, read_roberta
from qdqbert.encoders.family import Family

DATA2VEC_TEXT = Family(
    model_type="data2vec-text",
    prefix="data2vec_text",
    encoder=read_roberta,
    heads=ROBERTA_HEADS,
    defaults={**ROBERTA_DEFAULTS, "vocab_size": 30522},
)
