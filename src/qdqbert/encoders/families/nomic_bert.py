"""Nomic's BERT (Nussbaum et al. 2024, arXiv:2402.01613), and readers for rotated encoders."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.bert import (
    BERT_DEFAULTS,
    classify,
    classify_tokens,
    read_embeddings,
    transform,
)
from qdqbert.encoders.family import Encoder, Family, Heads, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layers import LayerPaths, Sizes, read_layers
from qdqbert.encoders.model import Head
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rope_parameters
from qdqbert.encoders.weights import Conversion

ROTATED_LAYER = LayerPaths(
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    attention_norm="post_attention_layernorm",
    up="mlp.gate_proj",
    gate="mlp.up_proj",
    down="mlp.down_proj",
    norm="post_mlp_layernorm",
)
"""Paths of a layer with a gate. transformers' `gate_proj` has the activation function."""

_FIELDS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "max_trained_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
    "rotary_emb_fraction": "partial_rotary_factor",
    "layer_norm_epsilon": "layer_norm_eps",
}
# Fields of older files, and the only values of them that are read.
_EXPECTED: Mapping[str, object] = {
    "activation_function": "swiglu",
    "causal": False,
    "num_experts": 0,
    "parallel_block": False,
    "prenorm": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "use_rms_norm": False,
}
_CONVERSION = Conversion(
    renames=(
        (r"encoder\.layers", "layers"),
        (r"emb_ln", "embeddings.LayerNorm"),
        (r"attn\.out_proj", "self_attn.o_proj"),
        # The first two are swapped: `fc12` is the one that is activated.
        (r"fc11", "up_proj"),
        (r"fc12", "gate_proj"),
        (r"fc2", "down_proj"),
        (r"norm1", "post_attention_layernorm"),
        (r"norm2", "post_mlp_layernorm"),
    ),
    splits={".attn.Wqkv": (".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj")},
)


def read_nomic_bert(reader: Reader) -> Encoder:
    """Read a model whose queries and keys are rotated, with gates."""
    check_expected(reader.config, _EXPECTED)
    return read_rotated(_with_padded_vocabulary(reader), ROTATED_LAYER)


def check_expected(config: Config, expected: Mapping[str, object]) -> None:
    """Refuse fields with other values than those that are read; null is one of them."""
    for name, value in expected.items():
        found = config.values[name]
        if found is not None and (found or None) != (value or None):
            raise config.refuse(name, f"only {value!r} is supported.")


def _with_padded_vocabulary(reader: Reader) -> Reader:
    """Return a reader whose `vocab_size` is a multiple of a field of older files."""
    config = reader.config
    size, step = config.integer("vocab_size"), config.integer("pad_vocab_size_multiple", least=1)
    values = {**config.values, "vocab_size": math.ceil(size / step) * step}
    return dataclasses.replace(reader, config=dataclasses.replace(config, values=values))


def read_rotated(reader: Reader, paths: LayerPaths, *, knows_ntk: bool = False) -> Encoder:
    """Read a model with rotated queries and keys, and LayerNorms after the residual adds."""
    config = reader.config
    sizes = Sizes.of(reader, head="head_dim")
    limit = config.integer("max_position_embeddings", least=1)
    parameters = rope_parameters(config)
    rotary = read_rotation(config, sizes.head, limit, parameters, knows_ntk=knows_ntk)
    return Encoder(
        embeddings=read_embeddings(
            reader,
            sizes.hidden,
            sizes.epsilon,
            has_positions=False,
            has_types=config.integer("type_vocab_size") > 0,
        ),
        layers=read_layers(
            reader,
            paths,
            sizes,
            path="layers",
            change=lambda attention: dataclasses.replace(attention, rotary=rotary),
        ),
        limit=limit,
    )


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `NomicBertForMaskedLM`."""
    at = parts.root.at("cls.predictions")
    activation = parts.config.activation("hidden_act")
    paths = ("transform.dense", "transform.layer_norm")
    steps = transform(parts, at, *paths, activation, outputs=parts.hidden)
    return logits("none", *steps, decoder(at, "decoder", "bias", parts.encoder.embeddings))


NOMIC_BERT = Family(
    model_type="nomic_bert",
    prefix="nomic_bert",
    encoder=read_nomic_bert,
    heads=Heads(fill_mask=fill_mask, classify=classify, classify_tokens=classify_tokens),
    code=("NomicBertModel", "NomicBertForPreTraining", "NomicBertForSequenceClassification"),
    defaults={
        **BERT_DEFAULTS,
        **_EXPECTED,
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "pad_vocab_size_multiple": 1,
        "rope_theta": 1000.0,
        "vocab_size": 30528,
    },
    fields=_FIELDS,
    conversion=_CONVERSION,
)
