"""Qwen2 (Yang et al. 2024, arXiv:2407.10671): Llama with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbert.encoders.families.llama import (
    LLAMA_CONVERSION,
    LLAMA_DEFAULTS,
    LLAMA_HEADS,
    LlamaLike,
    is_causal,
    windows_of_kinds,
)
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.reader import Reader

QWEN2_DEFAULTS: Mapping[str, Any] = {
    **LLAMA_DEFAULTS,
    "intermediate_size": 22016,
    "layer_types": None,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""Fields that readers of Qwen2 and Qwen3 use, and what they are in a config without them."""


def read_qwen2(reader: Reader) -> Encoder:
    """Read a model of transformers' class."""
    causal = is_causal(reader.config)
    return LlamaLike(
        causal=causal,
        biased=("q_proj", "k_proj", "v_proj"),
        windows=windows_of_kinds(reader.config, causal=causal),
    ).read(reader)


QWEN2 = Family(
    model_type="qwen2",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_qwen2,
    heads=LLAMA_HEADS,
    conversion=LLAMA_CONVERSION,
    skips_padding=True,
    defaults=QWEN2_DEFAULTS,
)
