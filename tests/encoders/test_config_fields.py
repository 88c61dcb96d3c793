"""Compare what is read from changed config.json files with transformers' float outputs.

A case is a change of a config.json that transformers wrote. Either transformers computes with it,
and what is read here computes the same, or it is refused here as well. A few settings that
transformers computes are refused here, by their names: they are listed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import encoder_reference
from encoders.test_families import SIZES, auto_class
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES
from qdqbert.encoders.families.bert import BERT_DEFAULTS
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.weights import Weights

GONE = object()
Change = Mapping[str, Any]

# A value of each field that is not its default.
BERT = {**SIZES, "hidden_act": "relu", "layer_norm_eps": 0.03}
ROTATED = {**BERT, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
DECODER = {**ROTATED, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.03}
DEBERTA = {
    **BERT,
    "relative_attention": True,
    "pos_att_type": ["p2c"],
    "max_relative_positions": 16,
    "position_biased_input": False,
    "pooler_hidden_act": "tanh",
}
DEBERTA_V2 = {
    **DEBERTA,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "conv_kernel_size": 3,
    "conv_act": "relu",
}
T5 = {
    **BERT,
    "d_ff": 56,
    "d_kv": 6,
    "feed_forward_proj": "gated-silu",
    "layer_norm_epsilon": 0.03,
    "relative_attention_max_distance": 16,
    "relative_attention_num_buckets": 12,
}
TWO_ROTATIONS = {
    "full_attention": {"rope_type": "default", "rope_theta": 77.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 33.0},
}
SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "relu"}
KINDS = [["full_attention"] * 3, ["sliding_attention"] * 3, ["full_attention"], ["x"] * 3, None]
BASES: Mapping[str, tuple[str, Change]] = {
    "albert": ("albert", {**BERT, "embedding_size": 24, "num_hidden_groups": 2}),
    "albert, inner groups": ("albert", {**BERT, "embedding_size": 128, "inner_group_num": 2}),
    "bert": ("bert", BERT),
    "bert, untied": ("bert", {**BERT, "tie_word_embeddings": False}),
    "bert-generation": ("bert-generation", BERT),
    "camembert": ("camembert", {**BERT, "pad_token_id": 3}),
    "clip_text_model": ("clip_text_model", {**BERT, "projection_dim": 24}),
    "clip_text_model, quick": ("clip_text_model", {**BERT, "hidden_act": "quick_gelu"}),
    "data2vec-text": ("data2vec-text", {**BERT, "pad_token_id": 3}),
    "deberta": ("deberta", {**DEBERTA, "legacy": False, "tie_word_embeddings": False}),
    "deberta, narrow embeddings": ("deberta", {**DEBERTA, "embedding_size": 24}),
    "deberta, plain": ("deberta", {**BERT, "max_relative_positions": 16}),
    "deberta-v2": ("deberta-v2", {**DEBERTA_V2, "legacy": False, "tie_word_embeddings": False}),
    "deberta-v2, groups": ("deberta-v2", {**DEBERTA_V2, "embedding_size": 24, "conv_groups": 4}),
    "deberta-v2, plain": ("deberta-v2", {**BERT, "norm_rel_ebd": "layer_norm"}),
    "deberta-v2, own projections": ("deberta-v2", {**DEBERTA, "pos_att_type": "c2p|p2c"}),
    "distilbert": (
        "distilbert",
        {**SIZES, "dim": 40, "n_heads": 5, "hidden_dim": 56, "n_layers": 2, "activation": "relu"},
    ),
    "dpr": ("dpr", {**BERT, "projection_dim": 24}),
    "electra": ("electra", {**BERT, **SUMMARY, "embedding_size": 24}),
    "ernie": ("ernie", {**BERT, "use_task_id": True, "task_type_vocab_size": 4}),
    "esm": ("esm", {**BERT, "position_embedding_type": "rotary", "rope_theta": 77.0}),
    "esm, dropped masks": (
        "esm",
        {**BERT, "emb_layer_norm_before": True, "token_dropout": True, "mask_token_id": 7},
    ),
    "esmc": ("esmc", {**ROTATED, "attention_bias": True, "mlp_bias": True}),
    "eurobert": (
        "eurobert",
        {
            **ROTATED,
            "attention_bias": True,
            "classifier_pooling": "mean",
            "mlp_bias": True,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rms_norm_eps": 0.03,
        },
    ),
    "eurobert, plain": ("eurobert", ROTATED),
    "gemma": (
        "gemma",
        {**DECODER, "attention_bias": True, "head_dim": 12, "pad_token_id": 0},
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            **DECODER,
            "attention_bias": True,
            "head_dim": 12,
            "pad_token_id": 0,
            "hidden_activation": "relu",
            "layer_types": KINDS[4],
            "query_pre_attn_scalar": 20,
            "rope_parameters": TWO_ROTATIONS,
            "sliding_window": 6,
            "sliding_window_pattern": 2,
        },
    ),
    "gemma3_text, both ways": (
        "gemma3_text",
        {
            **DECODER,
            "head_dim": 6,
            "pad_token_id": 0,
            "sliding_window": 7,
            "use_bidirectional_attention": True,
        },
    ),
    "gte": ("gte", ROTATED),
    "gte, no token types": ("gte", {**ROTATED, "type_vocab_size": 0}),
    "jina_embeddings_v3": ("jina_embeddings_v3", ROTATED),
    "llama": (
        "llama",
        {**DECODER, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    ),
    "llama, plain": ("llama", ROTATED),
    "longformer": ("longformer", {**BERT, "attention_window": [4, 8, 4], "pad_token_id": 3}),
    "megatron-bert": ("megatron-bert", BERT),
    "mistral": ("mistral", {**DECODER, "sliding_window": 5}),
    "modernbert": (
        "modernbert",
        {
            **SIZES,
            "attention_bias": True,
            "classifier_activation": "relu",
            "classifier_bias": True,
            "classifier_pooling": "mean",
            "decoder_bias": False,
            "hidden_activation": "relu",
            "local_attention": 6,
            "mlp_bias": True,
            "norm_bias": True,
            "norm_eps": 0.03,
            "rope_parameters": TWO_ROTATIONS,
        },
    ),
    "modernbert, plain": (
        "modernbert",
        {**SIZES, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    ),
    "modernbert-decoder": (
        "modernbert-decoder",
        {
            **SIZES,
            "attention_bias": True,
            "classifier_activation": "relu",
            "classifier_bias": True,
            "hidden_activation": "relu",
            "local_attention": 12,
            "mlp_bias": True,
            "norm_bias": True,
            "norm_eps": 0.03,
            "pad_token_id": 119,
            "rope_parameters": TWO_ROTATIONS,
        },
    ),
    "mpnet": ("mpnet", {**BERT, "relative_attention_num_buckets": 40}),
    "nomic_bert": ("nomic_bert", ROTATED),
    "qwen2": ("qwen2", {**DECODER, "layer_types": KINDS[1], "use_sliding_window": True}),
    "qwen3": ("qwen3", {**DECODER, "attention_bias": True, "head_dim": 12, "is_causal": False}),
    "qwen3, windows": (
        "qwen3",
        {
            **DECODER,
            "head_dim": 6,
            "max_window_layers": 1,
            "sliding_window": 4,
            "use_sliding_window": True,
        },
    ),
    "rembert": ("rembert", {**BERT, "input_embedding_size": 24, "output_embedding_size": 32}),
    "roberta": ("roberta", {**BERT, "pad_token_id": 3}),
    "roberta-prelayernorm": ("roberta-prelayernorm", {**BERT, "pad_token_id": 3}),
    "roformer": ("roformer", {**BERT, **SUMMARY, "embedding_size": 24}),
    "roformer, plain": ("roformer", {**BERT, "summary_type": "first"}),
    "siglip_text_model": ("siglip_text_model", {**BERT, "projection_size": 24}),
    "t5": ("t5", T5),
    "t5, plain": ("t5", {**BERT, "d_ff": 56}),
    "mt5": ("mt5", {**T5, "feed_forward_proj": "gated-relu"}),
    "umt5": ("umt5", T5),
    "ultrabert": (
        "ultrabert",
        {
            **{name: each for name, each in DECODER.items() if name != "rope_parameters"},
            "attention_bias": True,
            "classifier_pooling": "mean",
            "head_dim": 12,
            "mlp_bias": True,
            "prediction_head_size": 24,
            "rope_parameters": TWO_ROTATIONS,
            "sliding_window": 4,
        },
    ),
    "xlm-roberta": ("xlm-roberta", {**BERT, "pad_token_id": 3}),
    "xlm-roberta-xl": ("xlm-roberta-xl", {**BERT, "pad_token_id": 3}),
}
TOKENS = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
# Fields that say nothing about results.
SILENT = [
    {"chunk_size_feed_forward": 7},
    {"classifier_dropout": None},
    {"dtype": "float16"},
    {"dtype": GONE, "torch_dtype": "float16"},
    {"hidden_dropout_prob": 0.9},
    {"name_or_path": "other"},
    {"output_attentions": True},
    {"output_hidden_states": True},
    {"problem_type": None},
    {"return_dict": False},
    {"use_cache": False},
    {"vocab_list": ["a"]},
]
FOREIGN = [
    {"per_layer_config": {"0": {"layer_norm_eps": 0.5}}},
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
]
LINEAR = {"rope_type": "linear", "factor": 4.0}
THETA = {"rope_type": "default", "rope_theta": 50.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20}
# Each of these settings changes the result.
YARN_MORE = {
    "rope_type": "yarn",
    "factor": 3.0,
    "beta_fast": 5,
    "beta_slow": 0.5,
    "truncate": False,
    "mscale": 2.0,
    "mscale_all_dim": 0.5,
    "original_max_position_embeddings": 30,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 50.0,
    "low_freq_factor": 1,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
ROTATIONS = [
    {"rope_scaling": LINEAR},
    {"rope_scaling": {"type": "linear", "factor": 4.0}},
    {"rope_scaling": {"type": "dynamic", "rope_type": "linear", "factor": 4.0}},
    {"rope_scaling": {"rope_type": "linear"}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
    {"rope_scaling": THETA},
    {"rope_scaling": THETA, "rope_parameters": GONE},
    {"rope_scaling": LINEAR, "rope_parameters": None},
    {"rope_scaling": LINEAR, "rope_theta": 50.0},
    {"rope_scaling": LINEAR, "rope_theta": 50.0, "rope_parameters": GONE},
    {"rope_scaling": {}},
    {"rope_scaling": None},
    {"rope_scaling": "linear"},
    {"rope_scaling": {"rope_type": "ntk", "factor": 4.0}},
    {"rope_scaling": {"rope_type": None}},
    {"rope_theta": 50.0},
    {"rope_theta": 50.0, "rope_parameters": GONE},
    {"rope_theta": 50.0, "rope_parameters": {"rope_type": "default"}},
    {"rope_theta": None, "rope_parameters": GONE},
    {"rope_parameters": {}},
    {"rope_parameters": []},
    {"rope_parameters": LINEAR},
    {"rope_parameters": {**LINEAR, "rope_theta": 50.0}},
    {"rope_parameters": {"type": "linear", "factor": 2, "rope_theta": 50}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    {"partial_rotary_factor": 1.0},
    {"partial_rotary_factor": None},
    {"rope_scaling": YARN},
    {"rope_parameters": {**YARN, "rope_theta": 50.0}},
    {"rope_parameters": {**YARN_MORE, "rope_theta": 50.0}},
    {"rope_scaling": {**YARN, "attention_factor": 0.5}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_scaling": YARN, "original_max_position_embeddings": 15},
    {"rope_scaling": {"rope_type": "yarn"}},
    {"rope_scaling": LLAMA3},
    {"rope_parameters": LLAMA3},
    {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 300}},
    {"rope_parameters": {**LLAMA3, "factor": None}},
]
# Settings that transformers computes, and that are refused here by the models that have them.
PROPORTIONAL = {"rope_type": "proportional", "factor": 2.0, "rope_theta": 50.0}
REFUSED_ROTATIONS = [{"rope_scaling": PROPORTIONAL}, {"rope_parameters": PROPORTIONAL}]
SINGLE = {"rope_type": "default", "rope_theta": 44.0}
# Scalings of all layers next to settings of some kinds of layers.
SCALINGS_OF_KINDS = [
    {"rope_scaling": scaling, "rope_parameters": own}
    for scaling in (LINEAR, THETA, {"type": "linear", "factor": 4.0}, {}, None, "linear")
    for own in (
        GONE,
        None,
        {"full_attention": SINGLE, "sliding_attention": {"type": "linear", "factor": 2.0}},
    )
]
MODERNBERT = [
    *({"layer_types": kinds} for kinds in KINDS),
    *({"layer_types": GONE, "global_attn_every_n_layers": number} for number in (1, 2, 5, 0, None)),
    {"global_attn_every_n_layers": 2},
    {"sliding_window": 1},
    {"sliding_window": 9},
    {"sliding_window": None},
    {"sliding_window": 1, "local_attention": GONE},
    {"local_attention": 7},
    {"local_attention": 0},
    {"rope_parameters": GONE, "global_rope_theta": 44.0},
    {"rope_parameters": GONE, "local_rope_theta": 44.0},
    {"rope_parameters": None, "global_rope_theta": 44.0, "local_rope_theta": 22},
    {"rope_parameters": GONE, "global_rope_theta": None},
    {"rope_parameters": GONE, "rope_theta": 44.0},
    {"global_rope_theta": 44.0, "local_rope_theta": 22.0},
    {"rope_parameters": {"full_attention": SINGLE}},
    {"rope_parameters": {"full_attention": SINGLE, "sliding_attention": None}},
    {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}, "local_rope_theta": 44.0},
    {"rope_parameters": {"full_attention": SINGLE}, "rope_scaling": LINEAR},
    {"rope_parameters": {"full_attention": SINGLE, "sliding_attention": 3.0}},
    {"rope_parameters": SINGLE},
    *SCALINGS_OF_KINDS,
]
MODERNBERT_DECODER = [each for each in MODERNBERT if "local_attention" not in each]
# Functions that transformers has, and that are not computed here.
OTHER_FUNCTIONS = {
    *("gelu_10", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu"),
    *("relu2", "relu6", "sigmoid", "sqrtsoftplus", "xielu"),
}
HEAD_SIZES = [{"head_dim": size} for size in (8, 10, None, 0)]
# Causal unless a field says otherwise.
CAUSAL = [{"is_causal": value} for value in (True, False, None)]
DECODERS = ("gemma", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
OWN_ROTATIONS = ("esm", "gemma3_text", "modernbert", "ultrabert")
HEAD_DIM = (
    *("esmc", "ultrabert"),
    *("esm", "eurobert", "gte", "jina_embeddings_v3", "modernbert", "nomic_bert"),
    *DECODERS,
)
T5_FIELDS = [
    *({"feed_forward_proj": kind} for kind in ("gated-gelu", "gelu", "x-relu", "gated-x-y", None)),
    *(
        {"feed_forward_proj": kind, "dense_act_fn": GONE, "is_gated_act": GONE}
        for kind in ("gated-gelu", "gelu", "relu", "gated-tanh", "x-relu", "gated-gelu-new")
    ),
    {"dense_act_fn": "relu"},
    {"dense_act_fn": None},
    {"is_gated_act": False},
    {"is_gated_act": None},
    *({"relative_attention_max_distance": distance} for distance in (2, 3, 5, 70, 0)),
    *({"num_layers": number} for number in (1, 2, 0)),
    {"hidden_size": 48},
    {"num_decoder_layers": 1},
    {"is_encoder_decoder": True},
    {"n_positions": 5},
]
CHANGES: Mapping[str, list[dict[str, Any]]] = {
    "albert": [{"num_hidden_groups": 3}, {"num_hidden_groups": 5}, {"inner_group_num": 0}],
    "bert": [
        {"position_embedding_type": "absolute"},
        {"hidden_size": 40.0},
        {"type_vocab_size": 0},
    ],
    "clip_text_model": [
        *({"hidden_act": name} for name in ("gelu", "quick_gelu", "silu")),
        {"projection_dim": 12},
        {"projection_dim": None},
    ],
    "siglip_text_model": [
        *({"projection_size": size} for size in (12, None, 40)),
        *({"pad_token_id": token} for token in (0, 5, None)),
        {"max_position_embeddings": 20},
    ],
    "deberta": [
        {"pos_att_type": "P2C"},
        {"pos_att_type": " p2c |p2c"},
        {"pos_att_type": ["p2c", "p2c"]},
        {"talking_head": None},
        {"talking_head": False},
        {"pooler_hidden_size": 40},
        {"max_relative_positions": -1},
        {"pooler_hidden_act": "gelu"},
        {"embedding_size": 40},
    ],
    "deberta-v2": [
        {"norm_rel_ebd": "LAYER_NORM"},
        {"norm_rel_ebd": "none"},
        {"norm_rel_ebd": "x|layer_norm"},
        {"position_buckets": 0},
        {"position_buckets": 6},
        {"relative_attention": False},
        {"share_att_key": None},
        {"attention_head_size": 8},
        {"conv_groups": 3},
        {"conv_kernel_size": 0},
    ],
    "distilbert": [
        {"hidden_size": 40},
        {"hidden_size": 40, "dim": GONE},
        {"hidden_size": 40, "dim": 48},
        {"hidden_size": 48},
        {"hidden_size": None},
        {"num_attention_heads": 4},
        {"num_attention_heads": 5, "n_heads": GONE},
        {"num_hidden_layers": 2, "n_layers": GONE},
        {"num_hidden_layers": 2, "n_layers": 3},
        {"hidden_act": "gelu"},
        {"sinusoidal_pos_embds": True},
        {"layer_norm_eps": 0.5},
    ],
    "esm": [
        {"rope_theta": 44.0},
        {"rope_theta": None},
        {"rope_scaling": LINEAR},
        {"hidden_act": "gelu"},
        {"token_dropout": None},
        {"is_decoder": None},
        {"emb_layer_norm_before": None},
        {"pad_token_id": None},
        {"mask_token_id": None},
        {"is_folding_model": False, "esmfold_config": None},
    ],
    "esmc": [
        {"num_key_value_heads": None},
        {"num_key_value_heads": 4},
        {"num_hidden_layers": 1},
        {"layer_norm_eps": 0.5},
        {"rms_norm_eps": 0.5},
    ],
    "modernbert-decoder": [
        *CAUSAL,
        *MODERNBERT_DECODER,
        {"head_dim": 8},
        {"classifier_pooling": "mean"},
    ],
    "ultrabert": [
        *({"layer_types": kinds} for kinds in KINDS),
        {"layer_types": GONE},
        {"layer_types": GONE, "attention_windows": [3, 0]},
        {"layer_types": GONE, "attention_windows": [0, 9], "rope_parameters": GONE},
        {"layer_types": GONE, "attention_windows": [0, 0]},
        {"rope_parameters": GONE, "rope_theta": [44.0, 22.0]},
        *({"sliding_window": size} for size in (1, 9, 0, None)),
        {"num_key_value_heads": None},
        {"num_key_value_heads": 3},
        {"classifier_pooling": "late"},
        {"is_causal": False},
        {"rope_parameters": GONE},
        {"rope_parameters": None},
        {"rope_parameters": {"full_attention": SINGLE, "sliding_attention": None}},
        {"rope_parameters": {"full_attention": SINGLE}},
        {"rope_parameters": {"full_attention": SINGLE, "sliding_attention": LINEAR}},
    ],
    "eurobert": [
        {"num_key_value_heads": None},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 3},
        {"classifier_pooling": "bos"},
        {"classifier_pooling": "late"},
        {"classifier_pooling": "cls"},
        {"layer_norm_eps": 0.5},
    ],
    "electra": [
        *({"summary_type": kind} for kind in ("first", "attn")),
        *({"summary_activation": name} for name in ("", "tanh", "silu")),
        {"summary_use_proj": False},
        {"summary_proj_to_labels": False},
        {"summary_proj_to_labels": None},
        {"summary_last_dropout": 0.5, "summary_first_dropout": 0.5},
        {"embedding_size": 40},
    ],
    "ernie": [{"use_task_id": False}],
    "gemma": [
        *CAUSAL,
        # True means what `is_causal: false` does, and transformers reads it only without a mask.
        *({"use_bidirectional_attention": value} for value in (False, None)),
        *({"hidden_act": name} for name in ("gelu", "relu", "gelu_pytorch_tanh")),
        {"hidden_activation": "relu"},
        {"num_key_value_heads": 3},
    ],
    "gemma3_text": [
        *CAUSAL,
        *({"use_bidirectional_attention": value} for value in (True, False, None)),
        {"use_bidirectional_attention": True, "is_causal": False},
        *({"layer_types": kinds} for kinds in KINDS),
        *({"layer_types": GONE, "sliding_window_pattern": number} for number in (1, 2, 0, None)),
        *({"sliding_window": size} for size in (1, 2, 9, 0, None)),
        {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 5.0},
        {"num_key_value_heads": None},
        {"query_pre_attn_scalar": 0},
        {"query_pre_attn_scalar": None},
        {"num_attention_heads": 3, "head_dim": 16},
        {"rope_parameters": GONE, "rope_theta": 44.0},
        {"rope_parameters": GONE, "rope_local_base_freq": 44.0},
        {"rope_parameters": None, "rope_theta": 44.0, "rope_local_base_freq": 22},
        {"rope_theta": 44.0, "rope_local_base_freq": 22.0},
        {"rope_parameters": GONE, "rope_theta": None},
        {"rope_parameters": {"full_attention": SINGLE, "sliding_attention": None}},
        {"rope_parameters": {"sliding_attention": SINGLE}},
        {"rope_parameters": {"full_attention": SINGLE, "sliding_attention": 3.0}},
        {"rope_parameters": SINGLE},
        *SCALINGS_OF_KINDS,
    ],
    "llama": [
        *CAUSAL,
        {"num_key_value_heads": None},
        {"num_key_value_heads": 3},
        {"pretraining_tp": 2},
        {"layer_types": KINDS[1]},
        {"head_dim": 6},
    ],
    "longformer": [
        {"attention_window": value}
        for value in (8, 7, 0, [4, 4, 4], [4, 4], [4, 3, 4], [4, 0, 4], None)
    ],
    "mistral": [*CAUSAL, *({"sliding_window": size} for size in (1, 9, 0, None))],
    "modernbert": MODERNBERT,
    "mpnet": [{"pad_token_id": 0}, {"pad_token_id": None}, {"type_vocab_size": 3}],
    "qwen2": [*CAUSAL, {"sliding_window": 3}, {"attention_bias": False}],
    "qwen3": [
        *CAUSAL,
        *({"layer_types": kinds, "sliding_window": 3} for kinds in KINDS),
        *({"layer_types": None, "max_window_layers": number} for number in (0, 2, 5)),
        *({"sliding_window": size} for size in (1, 9, 0, None)),
        {"use_sliding_window": True},
        {"use_sliding_window": False},
        {"use_sliding_window": False, "layer_types": None},
        {"num_key_value_heads": None},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 3},
        {"mlp_bias": True},
    ],
    **dict.fromkeys(("mt5", "t5", "umt5"), T5_FIELDS),
    "rembert": [{"embedding_size": 3}, {"tie_word_embeddings": True}],
    "roformer": [
        {"summary_use_proj": True},
        {"summary_use_proj": None},
        {"summary_activation": None},
        {"embedding_size": 40},
        {"rotary_value": False},
        {"rope_theta": 44.0},
    ],
}
REFUSED: Mapping[str, list[dict[str, Any]]] = {
    "bert": [
        {"position_embedding_type": "relative_key"},
        {"layer_norm_eps": -0.1},
        *({"hidden_act": name} for name in sorted(OTHER_FUNCTIONS)),
    ],
    "electra": [{"summary_type": kind} for kind in ("last", "mean", "cls_index")],
    "esm": [{"position_embedding_type": None}, {"position_embedding_type": "relative_key"}],
    # Then it is "last".
    "roformer": [{"rotary_value": True}, {"summary_type": GONE}],
    "t5": [{"layer_norm_epsilon": -0.1}],
}


def changes_of(kind: str, *, known: bool) -> list[dict[str, Any]]:
    """Return the changes of a type of models, which are read here or not."""
    is_rotated = kind in HEAD_DIM and kind not in OWN_ROTATIONS
    if not known:
        return [*FOREIGN, *REFUSED.get(kind, []), *(REFUSED_ROTATIONS if is_rotated else [])]
    return [
        *SILENT,
        *CHANGES.get(kind, []),
        *(ROTATIONS if is_rotated else []),
        *(HEAD_SIZES if kind in HEAD_DIM else []),
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": False},
    ]


# Classes of models whose embedding is their own.
CLASSES = {
    "clip_text_model": transformers.CLIPTextModelWithProjection,
    "dpr": transformers.DPRContextEncoder,
    "siglip_text_model": transformers.SiglipTextModel,
}
WITHOUT_TYPES = ("bert-generation", "clip_text_model", "esm", "siglip_text_model")


class Folder:
    """A checkpoint that transformers wrote, whose config.json is changed."""

    def __init__(self, base: str, task: str, path: Path) -> None:
        kind, fields = BASES[base]
        config = transformers.AutoConfig.for_model(kind, **{**TOKENS, **fields})
        config.num_labels = 2 if task == "question-answering" else 3
        torch.manual_seed(0)
        self.kind, self.task, self.path = kind, task, path
        self.automatic = CLASSES.get(kind) or auto_class(kind, task)
        make = self.automatic if kind in CLASSES else self.automatic.from_config
        model = make(config)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)
        model.save_pretrained(path)
        self.values: dict[str, Any] = json.loads((path / "config.json").read_text())
        shape = (2, 3, 21) if task == "multiple-choice" else (3, 21)
        inputs = encoder_reference.random_inputs(shape, seed=3)
        padding = config.pad_token_id
        inputs["input_ids"] = np.where(inputs["attention_mask"], inputs["input_ids"], padding)
        inputs["input_ids"][..., :1] = 7
        if getattr(config, "type_vocab_size", 0) < 2 or kind in WITHOUT_TYPES:
            del inputs["token_type_ids"]
        if kind == "clip_text_model":
            # transformers finds the end of a text by this token.
            ends = inputs["attention_mask"].sum(axis=1) - 1
            inputs["input_ids"][np.arange(len(ends)), ends] = config.eos_token_id
        self.inputs = inputs

        self._expected: dict[str, tuple[dict[str, Any] | None, bool]] = {}

    def write(self, change: Change) -> dict[str, Any]:
        changed = {**self.values, **change}
        kept = {name: value for name, value in changed.items() if value is not GONE}
        (self.path / "config.json").write_text(json.dumps(kept))
        return kept

    def expected(self) -> tuple[dict[str, Any] | None, bool]:
        """Return transformers' outputs, if it computes them, and whether it left out weights."""
        text = (self.path / "config.json").read_text()
        if text not in self._expected:
            self._expected[text] = self._compute()
        return self._expected[text]

    def _compute(self) -> tuple[dict[str, Any] | None, bool]:
        try:
            model, info = self.automatic.from_pretrained(
                self.path,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
            if info["mismatched_keys"] or any(
                "pooler" not in each for each in info["missing_keys"]
            ):
                return None, False
            inputs = {name: torch.from_numpy(each) for name, each in self.inputs.items()}
            if self.kind == "siglip_text_model":
                room = (0, model.config.max_position_embeddings - inputs["input_ids"].shape[1])
                token, mask = model.config.pad_token_id, inputs.pop("attention_mask") != 0
                ids = torch.where(mask, inputs["input_ids"], token)
                inputs["input_ids"] = torch.nn.functional.pad(ids, room, value=token)
            with torch.no_grad():
                found = model.eval()(**inputs, return_dict=True)
        except Exception:
            # Errors of all classes.
            return None, False
        outputs = {name: each.numpy() for name, each in found.items() if torch.is_tensor(each)}
        if self.kind in CLASSES:
            embedding = "text_embeds" if "text_embeds" in outputs else "pooler_output"
            outputs["sentence_embedding"] = outputs[embedding]
        return outputs, bool(info["unexpected_keys"])

    def read(self, values: Change) -> dict[str, Any]:
        """Return the outputs of what is read from a config."""
        config = Config(values=values)
        model = read_encoder(Weights(self.path), config, self.task)  # type: ignore[arg-type]
        return encoder_reference.run_encoder(model, self.inputs)

    def difference(self, outputs: Change, expected: Change) -> float:
        """Return the largest relative difference of two results."""
        mask = self.inputs["attention_mask"] == 1
        worst = 0.0
        # DPR's classes have no token states.
        for name in outputs.keys() & expected.keys():
            output, wanted = outputs[name], expected[name]
            if wanted.shape[: mask.ndim] == mask.shape:
                output, wanted = output[mask], wanted[mask]
            worst = max(worst, np.abs(output - wanted).max() / np.abs(wanted).max())
        return worst

    def fault(self, change: Change, *, is_known: bool = True) -> str | None:
        """Return what is wrong about reading a config with a change, if anything is."""
        values = self.write(change)
        expected, left_out = self.expected()
        try:
            found = self.read(values)
        except CheckpointError as error:
            named = any(name in str(error) for name in change)
            if is_known and expected is not None and not left_out:
                return f"refused: {error}"
            return None if named or left_out or expected is None else f"unnamed: {error}"
        if expected is None:
            # A field that is not read may have any value.
            changed = self.difference(found, self.read(self.values))
            return f"transformers refuses it, and results change by {changed}" if changed else None
        if (difference := self.difference(found, expected)) > 2e-4:
            return f"differs by {difference}"
        # `quantize` reads what transformers' class makes of the file.
        config = transformers.AutoConfig.from_pretrained(self.path).to_dict()
        if (difference := self.difference(self.read(config), expected)) > 2e-4:
            return f"transformers' config differs by {difference}"
        return None


def faults(folder: Folder, changes: Any, *, is_known: bool = True) -> list[str]:
    found = [(change, folder.fault(change, is_known=is_known)) for change in changes]
    return [f"{_shown(change)}: {fault}" for change, fault in found if fault]


def _shown(change: Change) -> str:
    return ", ".join(f"{k}={'absent' if v is GONE else repr(v)}" for k, v in change.items())


def fields_of(folder: Folder) -> list[str]:
    """Return the fields of a config that say something about the model."""
    names = {"architectures", "model_type", "transformers_version"}
    names |= {"eos_token_id"} if folder.kind == "clip_text_model" else set()
    return [name for name in folder.values if name not in names]


def cases(*tasks: str, default: str) -> list[Any]:
    """Return all models with a head of some tasks. One case is not slow."""
    return [
        pytest.param(
            base,
            task,
            marks=() if f"{base} {task}" == default else pytest.mark.slow,
            id=f"{base} {task}",
        )
        for base, (kind, _) in BASES.items()
        for task in ("feature-extraction", *FAMILIES[kind].heads.tasks)
        if task in tasks or (task == "feature-extraction" and not FAMILIES[kind].heads.tasks)
    ]


ALL = ("fill-mask", "multiple-choice", "question-answering", "text-classification")


@pytest.mark.parametrize(
    ("base", "task"),
    cases("feature-extraction", "token-classification", *ALL, default="eurobert fill-mask"),
)
def test_an_absent_field_has_the_default_of_its_class(base: str, task: str, tmp_path: Path) -> None:
    folder = Folder(base, task, tmp_path)
    refused = changes_of(folder.kind, known=False)
    names = [name for name in fields_of(folder) if {name: GONE} not in refused]
    assert faults(folder, [{}, *({name: GONE} for name in names)]) == []
    can_be_absent = []
    for name in names:
        folder.write({name: GONE})
        if folder.expected()[0] is not None:
            can_be_absent.append(name)
    # Only sizes are left.
    assert faults(folder, [dict.fromkeys(can_be_absent, GONE)]) == []


@pytest.mark.parametrize(
    ("base", "task"), cases("text-classification", default="modernbert text-classification")
)
def test_null_is_what_transformers_takes_it_for(base: str, task: str, tmp_path: Path) -> None:
    folder = Folder(base, task, tmp_path)
    nulls = [{name: None} for name in fields_of(folder)]
    refused = changes_of(folder.kind, known=False)
    assert faults(folder, [each for each in nulls if each not in refused]) == []


@pytest.mark.parametrize(
    ("base", "task"),
    cases(
        "fill-mask",
        "multiple-choice",
        "text-classification",
        default="deberta-v2, plain fill-mask",
    ),
)
def test_other_names_and_values_of_fields_count_as_in_transformers(
    base: str, task: str, tmp_path: Path
) -> None:
    folder = Folder(base, task, tmp_path)
    assert faults(folder, changes_of(folder.kind, known=True)) == []
    assert faults(folder, changes_of(folder.kind, known=False), is_known=False) == []


# Fields that only the modules of models read, and those of older files.
NOT_IN_CLASSES = {
    *("attention_head_size", "conv_act", "conv_groups", "conv_kernel_size", "embedding_size"),
    *("global_attn_every_n_layers", "head_dim", "is_causal", "norm_rel_ebd", "position_buckets"),
    *(
        "use_bidirectional_attention",
        "share_att_key",
        "sliding_window_pattern",
        "summary_activation",
        "summary_proj_to_labels",
        "summary_type",
    ),
    *("summary_use_proj", "talking_head"),
}

# Fields of the families' code before they were a part of transformers.
OLDER = {
    "gte": {"layer_norm_type", "logn_attention_scale"},
    "nomic_bert": {
        *("activation_function", "causal", "expert_choice_router", "ffn_div"),
        *("moe_every_n_layers", "moe_normalize_expert_weights", "moe_top_k"),
        *("num_experts", "num_shared_experts", "pad_vocab_size_multiple"),
        *("parallel_block", "prenorm", "rotary_emb_interleaved", "rotary_emb_scale_base"),
        *("rotary_scaling_factor", "use_rms_norm"),
    },
}


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in BASES.values()}))
def test_defaults_are_those_of_the_class(kind: str) -> None:
    own = transformers.CONFIG_MAPPING[kind]
    known = {field.name: field.default for field in dataclasses.fields(own)}
    theta = own.default_theta
    if kind in ("modernbert", "modernbert-decoder"):
        known["global_rope_theta"], known["local_rope_theta"] = theta["global"], theta["local"]
    elif kind == "gemma3_text":
        known["rope_theta"], known["rope_local_base_freq"] = theta["global"], theta["local"]
    elif "rope_parameters" in known:
        known["rope_theta"] = theta
    found = {name: each for name, each in FAMILIES[kind].defaults.items() if name in known}
    assert found == {name: known[name] for name in found}
    assert FAMILIES[kind].aliases == own.attribute_map
    # A family has BERT's fields, even if it does not read them.
    other = FAMILIES[kind].defaults.keys() - known.keys() - BERT_DEFAULTS.keys()
    assert other - NOT_IN_CLASSES <= OLDER.get(kind, set())
