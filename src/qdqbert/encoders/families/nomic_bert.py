"""Nomic's BERT (Nussbaum et al. 2024, arXiv:2402.01613), and readers for rotated encoders.

Version 2 (Nussbaum and Duderstadt 2025, arXiv:2502.07972) has no gates, and experts in every second
layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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
from qdqbert.encoders.layers import FoundExperts, LayerPaths, ReadExperts, Sizes, read_layers
from qdqbert.encoders.model import Activation, Experts, Floats, Head, Later, Linear
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
    "causal": False,
    "expert_choice_router": False,
    "ffn_div": 1,
    "moe_normalize_expert_weights": False,
    "num_shared_experts": 0,
    "parallel_block": False,
    "prenorm": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "use_rms_norm": False,
}
_CONVERSION = Conversion(
    renames=(
        (r"^bert\.", "nomic_bert."),
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
    own=r"^bert\.",
)


# The layers of version 2.
_PLAIN_LAYER = dataclasses.replace(ROTATED_LAYER, up="mlp.fc1", gate=None)
_ACTIVATIONS = ("swiglu", "gelu")


def read_nomic_bert(reader: Reader) -> Encoder:
    """Read a model whose queries and keys are rotated, with gates or with experts."""
    check_expected(config := reader.config, _EXPECTED)
    reader = _with_padded_vocabulary(reader)
    if (name := config.text("activation_function", null="swiglu")) not in _ACTIVATIONS:
        raise config.refuse("activation_function", f"expected one of {', '.join(_ACTIVATIONS)}.")
    count = config.integer("num_experts", null=0)
    if name == "swiglu":
        if count:
            raise config.refuse("num_experts", "experts with gates are not supported.")
        return read_rotated(reader, ROTATED_LAYER)
    # As its code: layer 1 is the first one with experts.
    every = config.integer("moe_every_n_layers", least=2) if count else 0

    def experts(at: Reader, sizes: Sizes, index: int) -> FoundExperts | None:
        return _read_experts(at, sizes) if every and index % every == 1 else None

    return read_rotated(reader, _PLAIN_LAYER, activation="gelu", experts=experts)


def _read_experts(at: Reader, sizes: Sizes) -> FoundExperts:
    """Read the experts of a layer, whose weights are the rows of two tensors."""
    config, inner, hidden = at.config, sizes.inner, sizes.hidden
    count = config.integer("num_experts", least=1)
    chosen = config.integer("moe_top_k", least=1)
    if chosen > count:
        raise config.refuse("moe_top_k", f"there are {count} experts, `num_experts`.")
    at = at.at("mlp")
    up, down = (at.later(f"experts.mlp.{name}", (count * inner, hidden)) for name in ("w1", "w2"))

    def turned(rows: Any) -> Floats:
        """Return rows of the last layers `(count * hidden, inner)`, which are stored turned."""
        each = np.asarray(down, np.float32).reshape(count, inner, hidden)
        found: Floats = each.transpose(0, 2, 1).reshape(-1, inner)[rows]
        return found

    module = f"{at.module}experts.mlp"
    return (
        Linear(weight=up, bias=at.zeros(count * inner), module=f"{module}.w1"),
        Linear(
            weight=Later((count * hidden, inner), turned),
            bias=at.zeros(count * hidden),
            module=f"{module}.w2",
        ),
        Experts(
            router=at.tensor("router.layer.weight", (count, hidden)),
            chosen=chosen,
            bias=at.tensor("experts.bias", (hidden,)),
        ),
    )


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


def read_rotated(
    reader: Reader,
    paths: LayerPaths,
    *,
    activation: Activation | None = None,
    experts: ReadExperts = lambda *_: None,
    knows_ntk: bool = False,
) -> Encoder:
    """Read a model with rotated queries and keys, and LayerNorms after the residual adds.

    For `activation` and `experts`, see `read_layers`.
    """
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
            activation=activation,
            experts=experts,
            change=lambda attention: dataclasses.replace(attention, rotary=rotary),
        ),
        limit=limit,
    )


def fill_mask(parts: Parts) -> tuple[Head, ...]:
    """Return the head of `NomicBertForMaskedLM`, or of `NomicBertForPreTraining` of older files."""
    at, config = parts.root.at("cls.predictions"), parts.config
    # Files of version 2 have no `hidden_act`.
    is_gelu = config.values["activation_function"] == "gelu"
    activation = "gelu" if is_gelu else config.activation("hidden_act")
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
        "activation_function": "swiglu",
        "head_dim": None,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "moe_every_n_layers": 2,
        "moe_top_k": 1,
        "num_experts": 0,
        "pad_vocab_size_multiple": 1,
        "rope_theta": 1000.0,
        "vocab_size": 30528,
    },
    fields=_FIELDS,
    conversion=_CONVERSION,
    # transformers' model has gates and no experts.
    quantized_fields={"num_experts": 0, "activation_function": "swiglu"},
)
