"""Checkpoints as the package gliner saves them, with random weights, made without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, processors
from torch import nn

from conftest import (
    BERT_SPECIAL,
    ROBERTA_SPECIAL,
    WITH_SEGMENTS,
    WORDS,
    make_config,
    make_tokenizer,
    spread,
)

MARKS = ("[FLERT]", "<<ENT>>", "<<SEP>>")
WIDTH, MAX_WIDTH = 24, 4


def two_layers(inputs: int, outputs: int | None = None) -> nn.Sequential:
    """Return a projection of gliner: to four times the outputs, and back."""
    outputs = outputs or inputs
    return nn.Sequential(
        nn.Linear(inputs, outputs * 4), nn.ReLU(), nn.Dropout(), nn.Linear(outputs * 4, outputs)
    )


def head_of(span_mode: str, *, width: int, layers: int) -> nn.Module:
    """Return the modules after the encoder, under gliner's names."""
    head = nn.Module()
    if layers:
        head.rnn = nn.Module()
        head.rnn.lstm = nn.LSTM(
            width, width // 2, num_layers=layers, bidirectional=True, batch_first=True
        )
    if span_mode == "token_level":
        head.scorer = nn.Module()
        head.scorer.proj_token = nn.Linear(width, width * 2)
        head.scorer.proj_label = nn.Linear(width, width * 2)
        head.scorer.out_mlp = nn.Sequential(
            nn.Linear(width * 3, width * 4), nn.Dropout(), nn.ReLU(), nn.Linear(width * 4, 3)
        )
        return head
    spans = nn.Module()
    if span_mode == "marker":
        spans.project_start, spans.project_end = (
            nn.Sequential(
                nn.Linear(width, width * 2), nn.ReLU(), nn.Dropout(), nn.Linear(width * 2, width)
            )
            for _ in range(2)
        )
        spans.out_project = nn.Linear(width * 2, width)
    else:
        spans.project_start, spans.project_end = two_layers(width), two_layers(width)
        if span_mode == "markerV1":
            # gliner has it, and does not use it.
            spans.project_first = two_layers(width)
        spans.out_project = two_layers(width * (3 if span_mode == "markerV1" else 2), width)
    head.span_rep_layer = nn.Module()
    head.span_rep_layer.span_rep_layer = spans
    head.prompt_rep_layer = two_layers(width)
    return head


def save_gliner(
    folder: Path,
    model_type: str = "deberta-v2",
    *,
    span_mode: str = "markerV0",
    width: int = WIDTH,
    seed: int = 0,
    safetensors: bool = False,
    config: Any = None,
    tokenizer: Any = None,
    scale: float = 3.0,
    labels_type: str | None = None,
    **settings: Any,
) -> Path:
    """Save a checkpoint.

    Args:
        folder: The folder.
        model_type: Family of the encoder.
        span_mode: How spans are scored.
        width: Channels after the encoder; a layer projects states if they have others.
        seed: Of the weights.
        safetensors: Whether weights are safetensors, and not what `torch.save` writes.
        config: Config of the encoder; a small one by default.
        tokenizer: Its tokenizer; one for words by default.
        scale: Factor of the last weights, so that probabilities are not all 0.5.
        labels_type: Family of an encoder of the labels; `None` for none.
        settings: Other settings of gliner_config.json.
    """
    folder.mkdir(exist_ok=True)
    special = BERT_SPECIAL if model_type in WITH_SEGMENTS else ROBERTA_SPECIAL
    tokenizer = tokenizer or make_tokenizer(special)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    tokenizer.save_pretrained(folder)
    config = config or make_config(model_type)
    # With a second encoder, gliner adds tokens to the tokenizer, and no rows to the table.
    config.vocab_size = len(tokenizer) - (len(MARKS) if labels_type else 0)
    torch.manual_seed(seed)
    encoder = spread(transformers.AutoModel.from_config(config))
    layers = settings.setdefault("num_rnn_layers", 1)
    model = head_of(span_mode, width=width, layers=layers)
    with torch.no_grad():
        last = (
            model.scorer.out_mlp[-1] if span_mode == "token_level" else model.prompt_rep_layer[-1]
        )
        last.weight *= scale
        last.bias *= scale
    inner = nn.Module()
    inner.bert_layer = nn.Module()
    inner.bert_layer.model = encoder
    if config.hidden_size != width:
        inner.projection = nn.Linear(config.hidden_size, width)
    if labels_type:
        settings |= save_labels_encoder(folder, labels_type, inner, width)
    model.token_rep_layer = inner
    tensors = {name: each.contiguous() for name, each in model.state_dict().items()}
    if safetensors:
        save_file(tensors, folder / "model.safetensors")
    else:
        torch.save(tensors, folder / "pytorch_model.bin")
    content = {
        "model_name": "a/model",
        "model_type": "gliner_uni_encoder_token"
        if span_mode == "token_level"
        else "gliner_uni_encoder_span",
        "encoder_config": config.to_dict(),
        "span_mode": span_mode,
        "hidden_size": width,
        "max_width": MAX_WIDTH,
        "max_len": 24,
        "class_token_index": tokenizer.convert_tokens_to_ids("<<ENT>>"),
        "vocab_size": config.vocab_size,
        "words_splitter_type": "whitespace",
        "subtoken_pooling": "first",
        "embed_ent_token": True,
        "fuse_layers": False,
        "post_fusion_schema": "",
        "labels_encoder": None,
        "labels_decoder": None,
        "relations_layer": None,
        "span_encoder_config": None,
        "ent_token": "<<ENT>>",
        "sep_token": "<<SEP>>",
        **settings,
    }
    (folder / "gliner_config.json").write_text(json.dumps(content))
    return folder


def save_labels_encoder(
    folder: Path, model_type: str, inner: nn.Module, width: int
) -> dict[str, Any]:
    """Add an encoder of labels to the encoders of a model, and return settings for it."""
    special = BERT_SPECIAL if model_type in WITH_SEGMENTS else ROBERTA_SPECIAL
    tokenizer = make_tokenizer(special)
    tokenizer.save_pretrained(folder / "labels_tokenizer")
    config = make_config(model_type, vocab_size=len(tokenizer))
    inner.labels_encoder = nn.Module()
    inner.labels_encoder.model = spread(transformers.AutoModel.from_config(config))
    if config.hidden_size != width:
        inner.labels_projection = nn.Linear(config.hidden_size, width)
    return {
        "labels_encoder": "another/model",
        "labels_encoder_config": config.to_dict(),
        "class_token_index": -1,
        "vocab_size": -1,
    }


def as_older_versions(folder: Path, base: Any) -> Path:
    """Leave nothing but weights and settings of a checkpoint, as older versions of gliner do."""
    values = json.loads((folder / "gliner_config.json").read_text())
    for each in folder.glob("*.json"):
        each.unlink()
    kept = ("max_width", "max_len", "hidden_size", "span_mode", "subtoken_pooling")
    content = {name: values[name] for name in kept} | {"model_name": str(base)}
    (folder / "gliner_config.json").write_text(json.dumps(content))
    return folder


def metaspace_tokenizer() -> Any:
    """Return a Unigram tokenizer with the steps of DeBERTa-v3's."""
    pieces = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4}
    letters = "▁abcdefghijklmnopqrstuvwxyz0123456789.,-()ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
    vocab = [(piece, 0.0) for piece in pieces]
    vocab += [(letter, -8.0) for letter in letters]
    vocab += [(f"▁{word}", -3.0) for word in dict.fromkeys(WORDS)]
    inner = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=3))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
