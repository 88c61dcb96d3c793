"""DPR (Karpukhin et al. 2020, arXiv:2004.04906): the encoders of questions and of passages."""

from __future__ import annotations

from qdqbert.encoders.families.bert import BERT_DEFAULTS, read_bert_like
from qdqbert.encoders.family import Family, Parts
from qdqbert.encoders.heads import states
from qdqbert.encoders.model import Head
from qdqbert.encoders.weights import Conversion


def embed(parts: Parts) -> tuple[Head, ...]:
    """Return the heads of `DPRContextEncoder` and `DPRQuestionEncoder`.

    The embedding is the state of the first token, projected if the config says so.
    """
    width = parts.config.integer("projection_dim")
    if not width:
        return states(("first",))
    return states(("first",), parts.root.linear("encode_proj", inputs=parts.hidden, outputs=width))


DPR = Family(
    model_type="dpr",
    # It has no token states.
    is_quantized=False,
    prefix="bert_model",
    encoder=read_bert_like,
    # The answers of `DPRReader` need the scores of several passages.
    embedding=embed,
    defaults={**BERT_DEFAULTS, "projection_dim": 0},
    conversion=Conversion(renames=((r"^(ctx|question)_encoder\.", ""),)),
)
