"""ESM-1b and ESM-2 for proteins (Rives et al. 2021; Lin et al. 2022)."""

from __future__ import annotations

import dataclasses

import numpy as np

from qdqbert.encoders.families.bert import BERT_DEFAULTS, classify_tokens
from qdqbert.encoders.families.roberta import classify, fill_mask
from qdqbert.encoders.family import Encoder, Family, Heads, Parts, longest_text, with_words
from qdqbert.encoders.layers import BERT_LAYER, Sizes, read_layers
from qdqbert.encoders.model import Embeddings, Head, Rotary, Table
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rotary_of

_LAYER = dataclasses.replace(BERT_LAYER, attention_norm="attention.LayerNorm", norm="LayerNorm")
# Share of the tokens that was masked in training, by which embeddings are scaled down.
_MASKED = 0.15 * 0.8


def read_esm(reader: Reader) -> Encoder:
    """Read a model whose layers normalize first, with rotated or learned positions."""
    config = reader.config
    kind = config.text("position_embedding_type")
    sizes = Sizes.of(reader, head="head_dim" if kind == "rotary" else None)
    if kind not in ("absolute", "rotary"):
        raise config.refuse("position_embedding_type", "expected 'absolute' or 'rotary'.")
    embeddings = _embeddings(reader, sizes, has_positions=kind == "absolute")
    # Rotated positions have no limit of their own.
    limit = config.integer("max_position_embeddings", least=1)
    rotary = _rotary(reader, sizes, limit) if kind == "rotary" else None
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


def _rotary(reader: Reader, sizes: Sizes, limit: int) -> Rotary:
    """Return the rotation by the frequencies of the file, or else of the config."""
    end = "rotary_embeddings.inv_freq"
    stored = sorted(name for name in reader.weights if name.endswith(end))
    if stored:
        # They are the same in all layers.
        frequencies = reader.tensor(stored[0].removeprefix(reader.path), (sizes.head // 2,))
        return rotary_of(frequencies, limit)
    # transformers' class has no other settings.
    theta = {"rope_theta": reader.config.values["rope_theta"]}
    return read_rotation(reader.config, sizes.head, limit, theta)


def _embeddings(reader: Reader, sizes: Sizes, *, has_positions: bool) -> Embeddings:
    config, at = reader.config, reader.at("embeddings")
    words, dropped_id = _words(reader, sizes.hidden), None
    if config.flag("token_dropout", null=False):
        dropped_id = config.integer("mask_token_id")
        rows = words.rows[:] * np.float32(1 - _MASKED)
        rows[dropped_id : dropped_id + 1] = 0
        words = dataclasses.replace(words, rows=rows)
    positions, padding_id = None, None
    if has_positions:
        positions = at.table(
            "position_embeddings", rows="max_position_embeddings", width=sizes.hidden
        )
        padding_id = config.integer("pad_token_id")
    has_norm = config.flag("emb_layer_norm_before", null=False)
    return Embeddings(
        words=words,
        positions=positions,
        norm=at.norm("layer_norm", size=sizes.hidden, epsilon=sizes.epsilon) if has_norm else None,
        padding_id=padding_id,
        first_position=padding_id or 0,
        dropped_id=dropped_id,
    )


def _words(reader: Reader, hidden: int) -> Table:
    return reader.at("embeddings").table("word_embeddings", rows="vocab_size", width=hidden)


def fill(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `EsmForMaskedLM`, whose decoder has the stored table of words."""
    return fill_mask(with_words(parts, _words(parts.body, parts.hidden)))


ESM = Family(
    model_type="esm",
    prefix="esm",
    encoder=read_esm,
    heads=Heads(fill_mask=fill, classify=classify, classify_tokens=classify_tokens),
    masks_queries=True,
    defaults={
        **BERT_DEFAULTS,
        "emb_layer_norm_before": None,
        "head_dim": None,
        "mask_token_id": None,
        "max_position_embeddings": 1026,
        "pad_token_id": None,
        "rope_theta": 10_000.0,
        "token_dropout": False,
        "vocab_size": None,
    },
)
