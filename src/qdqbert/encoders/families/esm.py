"""ESM-1b and ESM-2 for proteins (Rives et al. 2021; Lin et al. 2022)."""

from __future__ import annotations

import dataclasses

import numpy as np

from qdqbert.encoders.families.bert import classify_tokens
from qdqbert.encoders.families.roberta import classify, fill_mask
from qdqbert.encoders.family import Encoder, Family, Parts, longest_text, with_words
from qdqbert.encoders.layers import BERT_LAYER, Sizes, read_layers
from qdqbert.encoders.model import Embeddings, Head, Table
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import rotation

_LAYER = dataclasses.replace(BERT_LAYER, attention_norm="attention.LayerNorm", norm="LayerNorm")
# Share of the tokens that was masked in training, by which embeddings are scaled down.
_MASKED = 0.15 * 0.8


def read_esm(reader: Reader) -> Encoder:
    """Read a model whose layers normalize first, with rotated or learned positions."""
    config = reader.config
    sizes = Sizes.of(reader)
    kind = config.text("position_embedding_type", "absolute")
    if kind not in ("absolute", "rotary"):
        raise config.refuse("position_embedding_type", "expected 'absolute' or 'rotary'.")
    embeddings = _embeddings(reader, sizes, has_positions=kind == "absolute")
    # Rotated positions have no limit of their own.
    limit = config.integer("max_position_embeddings", 1026)
    rotary = None if kind == "absolute" else rotation(sizes.head, 10_000.0, limit)
    return Encoder(
        embeddings=embeddings,
        layers=read_layers(
            reader,
            _LAYER,
            sizes,
            activation="gelu",
            norms_first=True,
            change=lambda attention: dataclasses.replace(attention, rotary=rotary),
        ),
        limit=longest_text(embeddings) if kind == "absolute" else limit,
        final_norm=reader.norm(
            "encoder.emb_layer_norm_after", size=sizes.hidden, epsilon=sizes.epsilon
        ),
    )


def _embeddings(reader: Reader, sizes: Sizes, *, has_positions: bool) -> Embeddings:
    config, at = reader.config, reader.at("embeddings")
    words, dropped_id = _words(reader, sizes.hidden), None
    if config.flag("token_dropout", False):
        dropped_id = config.integer("mask_token_id")
        rows = words.rows * np.float32(1 - _MASKED)
        rows[dropped_id : dropped_id + 1] = 0
        words = dataclasses.replace(words, rows=rows)
    padding_id = config.integer("pad_token_id")
    positions = at.table("position_embeddings", width=sizes.hidden) if has_positions else None
    has_norm = config.flag("emb_layer_norm_before", False)
    return Embeddings(
        words=words,
        positions=positions,
        token_types=None,
        norm=at.norm("layer_norm", size=sizes.hidden, epsilon=sizes.epsilon) if has_norm else None,
        padding_id=padding_id if has_positions else None,
        first_position=padding_id if has_positions else 0,
        dropped_id=dropped_id,
    )


def _words(reader: Reader, hidden: int) -> Table:
    return reader.at("embeddings").table("word_embeddings", width=hidden)


def fill(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EsmForMaskedLM`, whose decoder has the stored table of words."""
    return fill_mask(with_words(parts, _words(parts.body, parts.hidden)))


ESM = Family(
    model_type="esm",
    prefix="esm",
    encoder=read_esm,
    heads={
        "fill-mask": fill,
        "text-classification": classify,
        "token-classification": classify_tokens,
    },
)
