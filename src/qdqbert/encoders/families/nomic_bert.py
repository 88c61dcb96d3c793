"""Nomic's BERT (Nussbaum et al. 2024, arXiv:2402.01613), and readers for rotated encoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from qdqbert.encoders.families.bert import classify, classify_tokens, transform
from qdqbert.encoders.family import Encoder, Family, Parts
from qdqbert.encoders.heads import decoder, logits
from qdqbert.encoders.layers import LayerPaths, Sizes, read_layers
from qdqbert.encoders.model import Embeddings, Head
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation
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
# Fields of older files, and the only values of them that are read. Missing ones have them, too.
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
    for name, expected in _EXPECTED.items():
        if (reader.config.values.get(name) or expected) != expected:
            raise reader.config.refuse(name, f"only {expected!r} is supported.")
    return read_rotated(reader, ROTATED_LAYER, theta=1000.0, activation="silu")


def read_rotated(
    reader: Reader, paths: LayerPaths, *, theta: float, activation: str, types: int = 2
) -> Encoder:
    """Read a model with rotated queries and keys, and LayerNorms after the residual adds.

    Args:
        reader: Reader of the encoder.
        paths: Paths of the parts of a layer.
        theta: Base of the frequencies, if the config has none.
        activation: transformers' name of the activation function, if the config has none.
        types: Number of token types, if the config has none.
    """
    config = reader.config
    sizes = Sizes.of(reader)
    limit = config.integer("max_position_embeddings")
    rotary = read_rotation(config, sizes.head, limit, theta=theta)
    at = reader.at("embeddings")
    has_types = at.has("token_type_embeddings.weight")
    return Encoder(
        embeddings=Embeddings(
            words=at.table("word_embeddings", width=sizes.hidden),
            positions=None,
            token_types=at.table("token_type_embeddings", width=sizes.hidden)
            if has_types
            else None,
            norm=at.norm("LayerNorm", size=sizes.hidden, epsilon=sizes.epsilon),
        ),
        layers=read_layers(
            reader,
            paths,
            sizes,
            path="layers",
            activation=config.activation("hidden_act", activation),
            change=lambda attention: dataclasses.replace(attention, rotary=rotary),
        ),
        limit=limit,
        has_token_types=config.integer("type_vocab_size", types) > 1,
    )


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `NomicBertForMaskedLM`."""
    at = parts.root.at("cls.predictions")
    activation = parts.config.activation("hidden_act", "silu")
    paths = ("transform.dense", "transform.layer_norm")
    steps = transform(parts, at, *paths, activation, outputs=parts.hidden)
    return logits("none", *steps, decoder(at, "decoder", "bias", parts.encoder.embeddings))


NOMIC_BERT = Family(
    model_type="nomic_bert",
    prefix="nomic_bert",
    encoder=read_nomic_bert,
    heads={
        "fill-mask": fill_mask,
        "text-classification": classify,
        "token-classification": classify_tokens,
    },
    code=("NomicBertModel", "NomicBertForPreTraining", "NomicBertForSequenceClassification"),
    fields=_FIELDS,
    conversion=_CONVERSION,
)
