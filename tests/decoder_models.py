"""Tiny decoders that are used as encoders, with the files of Qwen3-Embedding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from conftest import TEXTS, add_sentence_files

END = "<|endoftext|>"
PROMPTS = {"query": "Instruct: Find passages that answer it\nQuery:", "document": ""}
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_byte_tokenizer(
    *, ends: bool = True, added_tokens: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """Return a tokenizer of pieces of bytes as Qwen3-Embedding's, which ends texts with a token."""
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens([END, "<|im_end|>"])
    made.add_tokens([*added_tokens])
    last = made.token_to_id(END)
    own = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    template = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, last)]
    )
    made.post_processor = processors.Sequence([own, template]) if ends else own
    return made


def save_decoder(
    folder: Path,
    model_type: str = "qwen3",
    *,
    auto: Any = transformers.AutoModel,
    ends: bool = True,
    added_tokens: Sequence[str] = (),
    **changes: Any,
) -> Any:
    """Write a random model and its tokenizer, and return the model."""
    tokenizer = make_byte_tokenizer(ends=ends, added_tokens=added_tokens)
    fields = {
        "vocab_size": tokenizer.get_vocab_size() + 3,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "max_position_embeddings": 100,
        "initializer_range": 0.3,
        "pad_token_id": tokenizer.token_to_id(END),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "tie_word_embeddings": True,
    }
    config = transformers.AutoConfig.for_model(model_type, **{**fields, **changes})
    torch.manual_seed(0)
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    # transformers starts with zeros for the padding token, which ends each text here.
    table = model.get_input_embeddings().weight
    table.data[config.pad_token_id] = torch.randn(config.hidden_size)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "add_prefix_space": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 131072,
        "pad_token": END,
        "padding_side": "left",
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_embedder(folder: Path, model_type: str = "qwen3", *, pooling: str, **changes: Any) -> Path:
    """Write a folder of sentence-transformers with the files that Qwen3-Embedding has."""
    save_decoder(folder, model_type, **changes)
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "lasttoken"}
    flags = {flag: mode == pooling for flag, mode in modes.items()}
    dimension = {"word_embedding_dimension": 48, "include_prompt": True}
    add_sentence_files(folder, {**dimension, **flags}, max_seq_length=64)
    settings = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    # Embedders are made of generators, which their configs still name.
    change_config(folder, architectures=["Qwen3ForCausalLM"])
    return folder
