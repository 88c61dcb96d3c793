"""Longformer (Beltagy et al. 2020, arXiv:2004.05150): RoBERTa with windows.

Heads are read for which no token attends to all others: transformers lets the first token of a text
do that for classes, and all tokens of a question, by linear layers of their own.
"""

from __future__ import annotations

import dataclasses

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import classify_tokens
from qdqbert.encoders.families.roberta import ROBERTA_DEFAULTS, fill_mask, read_roberta
from qdqbert.encoders.family import Encoder, Family, Heads
from qdqbert.encoders.reader import Reader


def read_longformer(reader: Reader) -> Encoder:
    """Read a model in which a token attends to near ones, in each layer to as many as it says."""
    encoder = read_roberta(reader)
    windows = _windows(reader.config, len(encoder.layers))
    layers = (
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, window=window))
        for layer, window in zip(encoder.layers, windows, strict=True)
    )
    return dataclasses.replace(encoder, layers=tuple(layers))


def _windows(config: Config, layers: int) -> list[int]:
    """Return the tokens on each side that a token attends to, of each layer."""
    given = config.values["attention_window"]
    every = given if isinstance(given, list) else [given] * layers
    if len(every) != layers or not all(
        type(each) is int and each > 0 and each % 2 == 0 for each in every
    ):
        raise config.refuse(
            "attention_window", f"expected an even number from 2, or {layers}, one for each layer."
        )
    return [each // 2 for each in every]


LONGFORMER = Family(
    model_type="longformer",
    prefix="longformer",
    encoder=read_longformer,
    heads=Heads(classify_tokens=classify_tokens, fill_mask=fill_mask),
    lacking="tokens that attend to all others, by linear layers of their own",
    masks_queries=True,
    positions_follow="padding",
    defaults={**ROBERTA_DEFAULTS, "attention_window": 512, "vocab_size": 30522},
)
