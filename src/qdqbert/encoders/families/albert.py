"""ALBERT (Lan et al. 2019, arXiv:1909.11942)."""

from __future__ import annotations

from qdqbert.encoders.families.bert import (
    BERT_DEFAULTS,
    bert_heads,
    pooled_heads,
    read_bert_like,
    transform,
)
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layers import LayerPaths, Sizes, read_layer
from qdqbert.encoders.model import Head, Layer, Step
from qdqbert.encoders.reader import Reader

_LAYER = LayerPaths(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    output="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    norm="full_layer_layer_norm",
)


def read_albert(reader: Reader) -> Encoder:
    """Read a model whose layers share weights, and whose embeddings are projected."""
    return read_bert_like(
        reader,
        width=reader.config.integer("embedding_size", least=1),
        projection="encoder.embedding_hidden_mapping_in",
        always_projects=True,
        layers=_layers,
    )


def _layers(reader: Reader, sizes: Sizes) -> tuple[Layer, ...]:
    config = reader.config
    count, groups = (
        config.integer(name, least=1) for name in ("num_hidden_layers", "num_hidden_groups")
    )
    if groups > count:
        raise config.refuse("num_hidden_groups", f"expected 1 to {count}.")
    activation = config.activation("hidden_act")
    shared = [
        [
            read_layer(
                reader.at(f"encoder.albert_layer_groups.{group}.albert_layers.{index}"),
                _LAYER,
                sizes,
                activation=activation,
            )
            for index in range(config.integer("inner_group_num", least=1))
        ]
        for group in range(groups)
    ]
    # As transformers divides the layers among the groups.
    return tuple(layer for index in range(count) for layer in shared[int(index / (count / groups))])


def _pooled(parts: Parts) -> tuple[Step, ...]:
    return parts.body.linear("pooler", inputs=parts.hidden), "tanh"


# The heads of `AlbertForSequenceClassification` and `AlbertForMultipleChoice`.
classify, choose = pooled_heads(_pooled)


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `AlbertForMaskedLM`."""
    at = parts.root.at("predictions")
    activation = parts.config.activation("hidden_act")
    steps = transform(parts, at, "dense", "LayerNorm", activation)
    return logits("none", *steps, decoder(at, "decoder", "bias", parts.encoder.embeddings))


ALBERT = Family(
    model_type="albert",
    # Its layers share weights, which ONNX Runtime refuses in INT8 on some CPUs.
    is_quantized=False,
    prefix="albert",
    encoder=read_albert,
    heads=bert_heads(fill_mask, classify, choose),
    defaults={
        **BERT_DEFAULTS,
        "embedding_size": 128,
        "hidden_act": "gelu_new",
        "hidden_size": 4096,
        "inner_group_num": 1,
        "intermediate_size": 16384,
        "num_attention_heads": 64,
        "num_hidden_groups": 1,
        "vocab_size": 30000,
    },
)
