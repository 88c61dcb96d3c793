"""The encoder of BERT for generation (Rothe et al. 2019, arXiv:1907.12461)."""

from __future__ import annotations

from qdqbert.encoders.families.bert import read_bert
from qdqbert.encoders.family import Family

BERT_GENERATION = Family(model_type="bert-generation", prefix="bert", encoder=read_bert, heads={})
