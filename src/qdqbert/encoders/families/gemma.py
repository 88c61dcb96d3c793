"""Gemma (Gemma Team 2024, arXiv:2403.08295), of which bge-reranker-v2-gemma is made."""

from __future__ import annotations

import dataclasses
import math

from qdqbert.encoders.families.llama import (
    ATTENTION,
    LLAMA_CONVERSION,
    LLAMA_DEFAULTS,
    LLAMA_HEADS,
    LlamaLike,
    is_causal,
)
from qdqbert.encoders.family import Encoder, Family, Heads
from qdqbert.encoders.reader import Reader


def read_gemma(reader: Reader) -> Encoder:
    """Read a model like Llama with longer rows of words, and norms whose weights start from 1."""
    config = reader.config
    # The width of heads has a default of its own.
    config.integer("head_dim", least=1)
    if config.values["hidden_act"] == "gelu":
        # The first files said so, and meant the other one.
        values = {**config.values, "hidden_act": "gelu_pytorch_tanh"}
        reader = dataclasses.replace(reader, config=dataclasses.replace(config, values=values))
    return LlamaLike(
        causal=is_causal(config),
        biased=ATTENTION if config.flag("attention_bias") else (),
        weights_from_one=True,
        factor=math.sqrt(config.integer("hidden_size", least=1)),
    ).read(reader)


GEMMA = Family(
    model_type="gemma",
    prefix="model",
    first="embed_tokens.weight",
    encoder=read_gemma,
    heads=Heads(classify=LLAMA_HEADS.classify, classify_tokens=LLAMA_HEADS.classify_tokens),
    conversion=LLAMA_CONVERSION,
    skips_padding=True,
    defaults={
        **LLAMA_DEFAULTS,
        "attention_bias": False,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "max_position_embeddings": 8192,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 16,
        "use_bidirectional_attention": None,
        "vocab_size": 256000,
    },
)
