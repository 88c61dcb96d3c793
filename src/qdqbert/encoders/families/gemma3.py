"""The text model of Gemma 3 (Gemma Team 2025, arXiv:2503.19786), as in EmbeddingGemma."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qdqbert.encoders.config import Config
from qdqbert.encoders.families.llama import (
    ATTENTION,
    LLAMA_DEFAULTS,
    LLAMA_HEADS,
    LlamaLike,
    is_causal,
    sizes_of,
)
from qdqbert.encoders.family import Encoder, Family, Heads
from qdqbert.encoders.layers import FULL, SLIDING, kinds_of_layers
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.rotation import read_rotation, rope_settings

# Fields of older files with the base of the rotation.
_THETAS = {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}


def read_gemma3(reader: Reader) -> Encoder:
    """Read a model like Gemma that also normalizes heads and outputs of parts, with windows."""
    config = reader.config
    # The width of heads has a default of its own.
    size = config.integer("head_dim", least=1)
    sizes = sizes_of(reader)
    if sizes.hidden % sizes.heads:
        raise config.refuse("num_attention_heads", f"{sizes.hidden} is not a multiple of it.")
    limit = config.integer("max_position_embeddings", least=1)
    kinds = _kinds_of_layers(config)
    rotations = {
        kind: read_rotation(config, size, limit, _rope_parameters(config, kind))
        for kind in set(kinds)
    }
    window = _window(config) if SLIDING in kinds else None
    return LlamaLike(
        causal=is_causal(config),
        biased=ATTENTION if config.flag("attention_bias") else (),
        windows=[window if kind == SLIDING else None for kind in kinds],
        rotations=[rotations[kind] for kind in kinds],
        norms_heads=True,
        norms_parts=True,
        weights_from_one=True,
        activation="hidden_activation",
        scale=config.integer("query_pre_attn_scalar", least=1) ** -0.5,
        factor=math.sqrt(sizes.hidden),
    ).read(reader)


def _kinds_of_layers(config: Config) -> list[str]:
    count = config.integer("num_hidden_layers", least=1)
    if "layer_types" in config:
        return kinds_of_layers(config, [FULL] * count)
    every = config.integer("sliding_window_pattern", least=1)
    return [FULL if (index + 1) % every == 0 else SLIDING for index in range(count)]


def _window(config: Config) -> int:
    # transformers counts the token itself, unless `is_causal` is false.
    own = int(config.flag("is_causal", null=False))
    if config.flag("use_bidirectional_attention", null=False):
        # Half of it is on each side.
        return config.integer("sliding_window") // 2 + 1 - own
    return config.integer("sliding_window", least=own) - own


def _rope_parameters(config: Config, kind: str) -> Mapping[str, Any]:
    """Return the settings of the rotation of a kind of layer."""
    every, scaling = (rope_settings(config, each) for each in ("rope_parameters", "rope_scaling"))
    own = every.get(kind) or {"rope_type": "default"}
    if not isinstance(own, dict):
        raise config.refuse("rope_parameters", f"expected settings for {FULL} and {SLIDING}.")
    # The scaling is of layers in which tokens attend to all others.
    return {"rope_theta": config.values[_THETAS[kind]], **own, **(scaling if kind == FULL else {})}


GEMMA3_TEXT = Family(
    model_type="gemma3_text",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_gemma3,
    heads=Heads(classify=LLAMA_HEADS.classify),
    skips_padding=True,
    defaults={
        **LLAMA_DEFAULTS,
        "attention_bias": False,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "layer_types": None,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10_000.0,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
    },
)
