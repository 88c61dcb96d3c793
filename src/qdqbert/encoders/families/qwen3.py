"""Qwen3 (Yang et al. 2025, arXiv:2505.09388), of which Qwen3-Embedding and others are made."""

from __future__ import annotations

from qdqbert.encoders.families.llama import (
    ATTENTION,
    LLAMA_CONVERSION,
    LLAMA_HEADS,
    LlamaLike,
    is_causal,
    windows_of_kinds,
)
from qdqbert.encoders.families.qwen2 import QWEN2_DEFAULTS
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.reader import Reader

# Class of voyage-4-nano, in its own code.
_VOYAGE = "Qwen3BidirectionalModel"


def read_qwen3(reader: Reader) -> Encoder:
    """Read a model like Llama that normalizes queries and keys, each head by itself."""
    config = reader.config
    # Voyage's class is bidirectional, whatever the config says.
    causal = is_causal(config) and _VOYAGE not in str(config.values.get("auto_map"))
    # The width of heads has a default of its own.
    config.integer("head_dim", least=1)
    return LlamaLike(
        causal=causal,
        biased=ATTENTION if config.flag("attention_bias") else (),
        windows=windows_of_kinds(config, causal=causal),
        norms_heads=True,
    ).read(reader)


QWEN3 = Family(
    model_type="qwen3",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_qwen3,
    heads=LLAMA_HEADS,
    conversion=LLAMA_CONVERSION,
    skips_padding=True,
    projects_states=True,
    code=(_VOYAGE,),
    defaults={**QWEN2_DEFAULTS, "attention_bias": False, "head_dim": 128},
)
