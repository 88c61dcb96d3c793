"""DeBERTa-v2 and v3 (He et al. 2021, arXiv:2006.03654 and arXiv:2111.09543).

Everything about relative positions stays in float: the table, its projections and both matmuls with
it. Checkpoints that share projections (v3) project positions with the float weights of query and
key, which a graph holds next to the int8 ones. So do `embed_proj`, and the convolution of v2.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import BERT_DEFAULTS, bert_heads, pooled_heads, transform
from qdqbert.encoders.families.bert import fill_mask as fill_mask_as_bert
from qdqbert.encoders.family import Encoder, Family, Parts, with_words
from qdqbert.encoders.heads import logits
from qdqbert.encoders.layer_sites import LayerSites, TrainingSites
from qdqbert.encoders.layers import BERT_LAYER, Sizes, read_layer
from qdqbert.encoders.model import (
    Attention,
    Convolution,
    Embeddings,
    Floats,
    Head,
    Layer,
    Linear,
    RelativePositions,
    Step,
    Table,
)
from qdqbert.encoders.reader import Reader

DEBERTA_DEFAULTS: Mapping[str, Any] = {
    **BERT_DEFAULTS,
    "embedding_size": None,
    "layer_norm_eps": 1e-7,
    "legacy": True,
    "max_relative_positions": -1,
    "pooler_hidden_act": "gelu",
    "pos_att_type": None,
    "position_biased_input": True,
    "relative_attention": False,
    "type_vocab_size": 0,
    "vocab_size": 50265,
}
"""Fields of both versions, and what they are in a config without them."""
_LAYER = dataclasses.replace(
    BERT_LAYER,
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
)


def read_deberta(reader: Reader) -> Encoder:
    """Read a model, whose scores also have products of tokens with relative positions."""
    config = reader.config
    sizes = Sizes.of(reader, head="attention_head_size")
    limit = config.integer("max_position_embeddings", least=1)
    kinds = tuple(set(product_kinds(reader)))
    scale = 1 / math.sqrt(sizes.head * (1 + len(kinds)))
    positions = _relative_embeddings(reader, sizes)
    activation = config.activation("hidden_act")

    def layer(index: int) -> Layer:
        at = reader.at(f"encoder.layer.{index}")

        def with_positions(attention: Attention) -> Attention:
            changed = dataclasses.replace(attention, scale=scale, scales_keys=True)
            if positions is None or not kinds:
                return changed
            return dataclasses.replace(
                changed, relative=_relative(at, attention, positions, kinds, limit)
            )

        return read_layer(at, _LAYER, sizes, activation=activation, change=with_positions)

    return Encoder(
        embeddings=read_deberta_embeddings(reader, sizes),
        layers=tuple(layer(each) for each in range(config.integer("num_hidden_layers", least=1))),
        limit=limit,
        convolution=_convolution(reader, sizes),
    )


def _convolution(reader: Reader, sizes: Sizes) -> Convolution | None:
    config, at, hidden = reader.config, reader.at("encoder.conv"), sizes.hidden
    count, groups = config.integer("conv_kernel_size"), config.integer("conv_groups")
    if not count:
        return None
    if count % 2 == 0:
        raise config.refuse("conv_kernel_size", "expected an odd number.")
    if groups == 0 or hidden % groups:
        raise config.refuse("conv_groups", f"`hidden_size={hidden}` is not a multiple of it.")
    own = hidden // groups
    stored = at.tensor("conv.weight", (hidden, own, count)).transpose(0, 2, 1)
    weight = np.zeros((hidden, count, hidden), np.float32)
    for start in range(0, hidden, own):
        # The outputs of a group read its own channels.
        weight[start : start + own, :, start : start + own] = stored[start : start + own]
    return Convolution(
        linear=Linear(weight=weight.reshape(hidden, -1), bias=at.tensor("conv.bias", (hidden,))),
        activation=config.activation("conv_act"),
        norm=at.norm("LayerNorm", size=hidden, epsilon=sizes.epsilon),
    )


def product_kinds(reader: Reader) -> tuple[str, ...]:
    """Return the kinds of products with relative positions, as often as the config names them.

    They are "c2p" and "p2c".
    """
    found = reader.config.values["pos_att_type"]
    # Older files have "p2c|c2p".
    listed = (
        [each.strip() for each in found.lower().split("|")] if isinstance(found, str) else found
    )
    if listed is None:
        return ()
    if not isinstance(listed, list) or any(each not in ("c2p", "p2c") for each in listed):
        raise reader.config.refuse("pos_att_type", "expected 'c2p' and 'p2c'.")
    return tuple(listed)


def read_deberta_embeddings(reader: Reader, sizes: Sizes) -> Embeddings:
    """Read embeddings that need not have positions and token types.

    The sum of narrow ones is projected before its LayerNorm, so each table can be projected.
    """
    at = reader.at("embeddings")
    config, width = reader.config, _width(reader.config, sizes.hidden)
    projection = None
    if width != sizes.hidden:
        projection = at.tensor("embed_proj.weight", (sizes.hidden, width))

    def table(name: str, rows: str) -> Table:
        found = at.table(name, rows=rows, width=width)
        if projection is None:
            return found
        return dataclasses.replace(found, rows=found.rows[:] @ projection.T)

    return Embeddings(
        words=table("word_embeddings", "vocab_size"),
        positions=table("position_embeddings", "max_position_embeddings")
        if config.flag("position_biased_input")
        else None,
        token_types=table("token_type_embeddings", "type_vocab_size")
        if config.integer("type_vocab_size")
        else None,
        norm=at.norm("LayerNorm", size=sizes.hidden, epsilon=sizes.epsilon),
    )


def _width(config: Config, hidden: int) -> int:
    return config.integer("embedding_size", null=hidden, least=1)


def _buckets(reader: Reader) -> int:
    # -1 stands for none.
    return max(reader.config.integer("position_buckets", least=-1), 0)


def _farthest(reader: Reader) -> int:
    found = reader.config.integer("max_relative_positions", least=-1)
    return found if found >= 1 else reader.config.integer("max_position_embeddings", least=1)


def _relative_embeddings(reader: Reader, sizes: Sizes) -> Floats | None:
    """Return the table of relative positions `(2 * span, hidden)`; `None` if there is none."""
    at, norm = reader.at("encoder"), None
    if "layer_norm" in reader.config.text("norm_rel_ebd").lower():
        # transformers has it for a model without relative positions, too.
        norm = at.norm("LayerNorm", size=sizes.hidden, epsilon=sizes.epsilon)
    if not reader.config.flag("relative_attention"):
        return None
    # As many rows on each side of distance 0.
    span = _buckets(reader) or _farthest(reader)
    table = at.tensor("rel_embeddings.weight", (2 * span, sizes.hidden))
    if norm is None:
        return table
    centered = table - table.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=1, keepdims=True) + np.float32(norm.epsilon))
    return np.asarray(centered / deviation * norm.weight + norm.bias, np.float32)


def _relative(
    at: Reader, attention: Attention, positions: Floats, kinds: tuple[str, ...], limit: int
) -> RelativePositions:
    """Return the products of the table of positions with the layers that project it."""
    is_shared = at.config.flag("share_att_key", null=False)

    def layer(own: str, shared: Linear) -> Linear:
        return shared if is_shared else at.linear(f"attention.self.{own}", inputs=len(positions.T))

    return relative_positions(
        positions,
        keys=layer("pos_key_proj", attention.key) if "c2p" in kinds else None,
        queries=layer("pos_query_proj", attention.query) if "p2c" in kinds else None,
        heads=attention.heads,
        # Distances are query minus key.
        buckets=buckets_of(np.arange(limit - 1, -limit, -1), _buckets(at), _farthest(at)),
    )


def relative_positions(
    positions: Floats,
    *,
    keys: Linear | None,
    queries: Linear | None,
    heads: int,
    buckets: NDArray[np.int64],
) -> RelativePositions:
    """Return the tables of relative positions of a layer.

    Args:
        positions: `(2 * span, hidden)`, with distance 0 at row `span`.
        keys: Linear layer that makes keys of positions; `None` if there are none.
        queries: Linear layer that makes queries of positions; `None` if there are none.
        heads: Number of heads.
        buckets: `(2 * limit - 1,)`, the bucket of each distance, from a key far before on.
    """

    def projected(layer: Linear | None) -> Floats | None:
        if layer is None:
            return None
        rows = positions @ layer.weight[:].T + layer.bias
        by_head = rows.reshape(len(rows), heads, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(by_head, np.float32)

    span = len(positions) // 2
    return RelativePositions(
        keys=projected(keys),
        queries=projected(queries),
        rows=np.clip(buckets + span, 0, 2 * span - 1).astype(np.int32),
    )


def buckets_of(distances: NDArray[np.int64], buckets: int, farthest: int) -> NDArray[np.int64]:
    """Return the bucket of each distance `query - key`: the distance itself without buckets.

    Source: `make_log_bucket_position` of transformers' DeBERTa-v2.
    """
    if not buckets:
        return distances
    middle = buckets // 2
    distance = np.abs(distances).astype(np.float32)
    far = np.log(np.maximum(distance, middle - 1) / np.float32(middle))
    far = far / np.log(np.float32((farthest - 1) / middle)) * np.float32(middle - 1)
    far = (np.ceil(far) + middle) * np.sign(distances)
    return np.where(distance <= middle, distances, far).astype(np.int64)


def _pooled(parts: Parts) -> tuple[Step, ...]:
    dense = parts.root.linear("pooler.dense", inputs=parts.hidden)
    return dense, parts.config.activation("pooler_hidden_act")


# The heads of `DebertaV2ForSequenceClassification` and `DebertaV2ForMultipleChoice`.
classify, choose = pooled_heads(_pooled)


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `DebertaV2ForMaskedLM`, of which there are two forms."""
    width = _width(parts.config, parts.hidden)
    if parts.config.flag("legacy"):
        words = parts.body.table("embeddings.word_embeddings", rows="vocab_size", width=width)
        return fill_mask_as_bert(with_words(parts, words))
    if width != parts.hidden:
        raise parts.config.refuse("embedding_size", f"this head needs {parts.hidden}.")
    at = parts.root.at("lm_predictions.lm_head")
    activation = parts.config.activation("hidden_act")
    steps = transform(parts, at, "dense", "LayerNorm", activation, outputs=parts.hidden)
    # It always shares the table of words.
    shared = parts.encoder.embeddings.words.rows
    bias = at.tensor("bias", (len(shared),))
    return logits("none", *steps, Linear(weight=shared, bias=bias))


DEBERTA_V2 = Family(
    model_type="deberta-v2",
    prefix="deberta",
    masks_queries=True,
    encoder=read_deberta,
    heads=bert_heads(fill_mask, classify, choose),
    defaults={
        **DEBERTA_DEFAULTS,
        "attention_head_size": None,
        "conv_act": "tanh",
        "conv_groups": 1,
        "conv_kernel_size": 0,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "norm_rel_ebd": "none",
        "num_attention_heads": 24,
        "num_hidden_layers": 24,
        "position_buckets": -1,
        "share_att_key": False,
        "vocab_size": 128100,
    },
    # The matmuls with quantizers multiply content with content.
    training=TrainingSites(
        layer=LayerSites.of(_LAYER, residual_outputs=("attention.output", "output"))
    ),
)
