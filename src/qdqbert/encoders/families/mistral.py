"""Mistral (Jiang et al. 2023, arXiv:2310.06825): Llama whose layers all have a window."""

from __future__ import annotations

from qdqbert.encoders.families.llama import (
    LLAMA_CONVERSION,
    LLAMA_DEFAULTS,
    LLAMA_HEADS,
    LlamaLike,
    is_causal,
    window_of,
)
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.reader import Reader


def read_mistral(reader: Reader) -> Encoder:
    """Read a model of transformers' class."""
    config = reader.config
    causal = is_causal(config)
    windows = [window_of(config, causal=causal)] * config.integer("num_hidden_layers", least=1)
    return LlamaLike(causal=causal, windows=windows).read(reader)


MISTRAL = Family(
    model_type="mistral",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_mistral,
    heads=LLAMA_HEADS,
    conversion=LLAMA_CONVERSION,
    skips_padding=True,
    defaults={
        **LLAMA_DEFAULTS,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
)
