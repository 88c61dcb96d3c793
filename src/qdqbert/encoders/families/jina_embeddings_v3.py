"""Jina Embeddings v3 (Sturua et al. 2024, arXiv:2409.10173), and jina-colbert-v2.

Their own code is Jina's XLM-R with rotated queries and keys, and its `model_type` that of XLM-R.
"""

from __future__ import annotations

import dataclasses
import functools

from qdqbert.encoders.families.bert import BERT_DEFAULTS, answer, classify_tokens
from qdqbert.encoders.families.nomic_bert import ROTATED_LAYER, read_rotated
from qdqbert.encoders.families.roberta import classify, fill_mask
from qdqbert.encoders.family import FLASH, FLASH_CODE, Family, Heads
from qdqbert.encoders.weights import Conversion

_CONVERSION = Conversion(
    renames=(
        (r"emb_ln", "embeddings.LayerNorm"),
        (r"encoder\.layers", "layers"),
        (r"mixer\.out_proj", "self_attn.o_proj"),
        (r"norm1", "post_attention_layernorm"),
        (r"norm2", "post_mlp_layernorm"),
    ),
    splits={".mixer.Wqkv": (".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj")},
    own=r"\.mixer\.Wqkv\.",
)
_LAYER = dataclasses.replace(ROTATED_LAYER, up="mlp.fc1", gate=None, down="mlp.fc2")


JINA_EMBEDDINGS_V3 = Family(
    model_type="jina_embeddings_v3",
    prefix="roberta",
    encoder=functools.partial(read_rotated, paths=_LAYER),
    heads=Heads(
        fill_mask=fill_mask, answer=answer, classify=classify, classify_tokens=classify_tokens
    ),
    defaults={
        **BERT_DEFAULTS,
        "head_dim": None,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 8194,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "rope_theta": 20_000.0,
        "type_vocab_size": 1,
        "vocab_size": 250002,
    },
    code=FLASH_CODE,
    code_config=FLASH,
    code_defaults={"rope_theta": 10_000.0},
    fields={"rotary_emb_base": "rope_theta"},
    conversion=_CONVERSION,
)
