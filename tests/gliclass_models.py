"""Checkpoints as gliclass saves them, with random weights, and its definitions in torch.

`reference` computes what `GLiClassModel` of gliclass 0.1.21 returns for a text, by its uni-encoder.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from torch import nn

from conftest import (
    BERT_SPECIAL,
    POSITIONS,
    ROBERTA_SPECIAL,
    WITH_SEGMENTS,
    make_config,
    make_tokenizer,
    spread,
)

MARKS = ("<<LABEL>>", "<<SEP>>", "<<EXAMPLE>>")
HEADS = 4


def layers(*sizes: int) -> nn.Sequential:
    """Return linear layers with a module between them, as gliclass counts them."""
    found: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        found += [nn.Linear(before, after), nn.Identity()]
    return nn.Sequential(*found[:-1])


class Head(nn.Module):
    """The layers after the encoder, under the names of gliclass."""

    def __init__(self, size: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        model = nn.Module()
        for name in ("text_projector", "classes_projector"):
            each = nn.Module()
            each.linear_1, each.linear_2 = nn.Linear(size, size), nn.Linear(size, size)
            setattr(model, name, each)
        model.scorer = self.scorer = nn.Module()
        kind = settings["scorer_type"]
        if kind == "weighted-dot":
            for name in ("proj_text", "proj_label"):
                setattr(self.scorer, name, nn.Linear(size, 2 * size))
            out = [nn.Linear(3 * size, 4 * size), nn.Identity(), nn.ReLU(), nn.Linear(4 * size, 1)]
            self.scorer.out_mlp = nn.Sequential(*out)
        elif kind == "hopfield":
            for name in ("q_proj", "k_proj", "v_proj"):
                setattr(self.scorer, name, nn.Linear(size, size, bias=False))
            self.scorer.mlp = layers(size, 256, 128, 1)
        elif kind == "mlp":
            self.scorer.mlp = layers(2 * size, 256, 128, 1)
        elif kind == "cross-attn":
            for name in ("q_norm", "kv_norm", "norm"):
                setattr(self.scorer, name, nn.LayerNorm(size))
            for name in ("q", "k", "v", "out"):
                setattr(self.scorer, name, nn.Linear(size, size))
            self.scorer.score_mlp = layers(2 * size, 1024, 512, 1)
        if settings.get("use_lstm"):
            model.lstm = nn.Module()
            model.lstm.lstm = nn.LSTM(size, size // 2, bidirectional=True, batch_first=True)
        model.logit_scale = nn.Parameter(torch.tensor(2.6592))
        self.model = model
        if settings.get("use_calibrator"):
            self.calibrator = nn.Module()
            self.calibrator.text_norm = nn.LayerNorm(size)
            self.calibrator.label_norm = nn.LayerNorm(size)
            outputs = 2 if settings.get("calibrator_use_bias") else 1
            # With a function and a dropout after each layer.
            parts = [nn.Linear(4 * size + 6, 256), nn.GELU(), nn.Identity()]
            parts += [nn.Linear(256, 256), nn.GELU(), nn.Identity(), nn.Linear(256, outputs)]
            self.calibrator.mlp = nn.Sequential(*parts)

    def forward(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of labels, from the states of a text `(tokens, size)` and its ids."""
        given, model, scorer = self.settings, self.model, self.scorer
        text = self.project(model.text_projector, self.text(states, ids))
        labels = self.project(model.classes_projector, self.labels(states, ids))
        kind = given["scorer_type"]
        if kind == "simple":
            logits = labels @ text
        elif kind == "weighted-dot":
            own, other = scorer.proj_text(text), scorer.proj_label(labels)
            first, second = own.chunk(2)
            third, fourth = other.chunk(2, dim=-1)
            both = torch.cat([first.expand_as(third), third, second * fourth], dim=-1)
            logits = scorer.out_mlp(both)[:, 0]
        elif kind == "mlp":
            both = torch.cat([text.expand_as(labels), labels], dim=-1)
            logits = self.stack(scorer.mlp, both, torch.relu)
        elif kind == "hopfield":
            attention = torch.softmax(4 * scorer.q_proj(labels) @ scorer.k_proj(text), dim=0)
            labels_read = labels + attention[:, None] * scorer.v_proj(text)
            logits = self.stack(scorer.mlp, labels_read, torch.relu)
        else:
            query, key = scorer.q(scorer.q_norm(labels)), scorer.k(scorer.kv_norm(text))
            heads = [
                x.view(len(x), HEADS, -1).transpose(0, 1) for x in (query, key, scorer.v(text))
            ]
            context = nn.functional.scaled_dot_product_attention(*(x[None] for x in heads))[0]
            context = scorer.norm(scorer.out(context.transpose(0, 1).reshape(query.shape)))
            both = torch.cat([context, labels], dim=-1)
            logits = self.stack(scorer.score_mlp, both, nn.functional.gelu)
        if given.get("normalize_features"):
            logits = logits * model.logit_scale
        return self.calibrated(text, labels, logits) if given.get("use_calibrator") else logits

    @staticmethod
    def stack(modules: Any, x: torch.Tensor, function: Any) -> torch.Tensor:
        return modules[4](function(modules[2](function(modules[0](x)))))[:, 0]

    def project(self, projector: Any, x: torch.Tensor) -> torch.Tensor:
        function = transformers.activations.ACT2FN[self.settings["projector_hidden_act"]]
        found = projector.linear_2(function(projector.linear_1(x)))
        if self.settings.get("normalize_features"):
            found = found / (found.norm(dim=-1, keepdim=True) + 1e-8)
        return found

    def text(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.settings.get("extract_text_features"):
            start = int((ids == self.settings["text_token_index"]).int().argmax())
            zeros = torch.zeros_like(states[:start])
            is_kept = self.settings["pooling_strategy"] == "pass" or self.settings.get("use_lstm")
            states = states[start:] if is_kept else torch.cat([states[start:], zeros])
        if self.settings.get("use_lstm"):
            states = self.model.lstm.lstm(states[None])[0][0]
        return {
            "first": lambda x: x[0],
            "last": lambda x: x[-1],
            "avg": lambda x: x.mean(dim=0),
            "sum": lambda x: x.sum(dim=0),
            "max": lambda x: x.amax(dim=0),
            "rms": lambda x: x.pow(2).mean(dim=0).sqrt(),
            "abs_max": lambda x: x.abs().amax(dim=0),
            "abs_avg": lambda x: x.abs().mean(dim=0),
            "pass": lambda x: x,
        }[self.settings["pooling_strategy"]](states)

    def labels(self, states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        given = self.settings
        is_label = ids == given["class_token_index"]
        if given["class_token_pooling"] == "first":
            return states[is_label.nonzero()[:, 0] + (not given["embed_class_token"])]
        owners, found = is_label.cumsum(dim=0), []
        is_text = (ids == given["text_token_index"]).cumsum(dim=0) > 0
        for number in range(1, int(owners[-1]) + 1):
            chosen = owners == number
            if given.get("extract_text_features"):
                chosen &= ~is_text
            if not given["embed_class_token"]:
                chosen &= ~is_label
            found.append(states[chosen].mean(dim=0))
        return torch.stack(found)

    def calibrated(
        self, text: torch.Tensor, labels: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        entropy = torch.distributions.Bernoulli(logits=logits).entropy().mean()
        count = torch.tensor(float(len(logits)))
        facts = [logits, logits.abs(), logits - logits.max(), logits - logits.mean()]
        facts += [entropy.expand_as(logits), count.log().expand_as(logits)]
        own = self.calibrator.text_norm(text).expand_as(labels)
        other = self.calibrator.label_norm(labels)
        parts = [own, other, own * other, (own - other).abs(), torch.stack(facts, dim=-1)]
        output = self.calibrator.mlp(torch.cat(parts, dim=-1))
        scale = self.settings.get("calibrator_beta_max", 3.0) * torch.sigmoid(output[:, 0])
        return scale * logits + (output[:, 1] if output.shape[1] > 1 else 0)


def save_gliclass(folder: Path, family: str = "deberta-v2", **settings: Any) -> Path:
    """Save a checkpoint, whose config differs from gliclass' defaults by these settings."""
    tokenizer = make_tokenizer(BERT_SPECIAL if family in WITH_SEGMENTS else ROBERTA_SPECIAL)
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    # Relative positions limit nothing.
    tokenizer.model_max_length = POSITIONS
    config = make_config(family, vocab_size=len(tokenizer))
    usual = {
        "scorer_type": "simple",
        "pooling_strategy": "first",
        "class_token_pooling": "first",
        "projector_hidden_act": "gelu",
        "embed_class_token": True,
        "prompt_first": False,
    }
    content = {
        **usual,
        "model_type": "GLiClass",
        "architectures": ["GLiClassModel"],
        "architecture_type": "uni-encoder",
        "encoder_config": config.to_dict(),
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "scorer_num_heads": HEADS,
        **dict(
            zip(
                ("class_token_index", "text_token_index", "example_token_index"),
                tokenizer.convert_tokens_to_ids(list(MARKS)),
                strict=True,
            )
        ),
        **settings,
    }
    torch.manual_seed(0)
    encoder = spread(transformers.AutoModel.from_config(config))
    head = spread(Head(config.hidden_size, content))
    tensors = {f"model.encoder_model.{name}": each for name, each in encoder.state_dict().items()}
    tokenizer.save_pretrained(folder)
    safetensors.torch.save_file(
        {
            name: each.contiguous().clone()
            for name, each in {**tensors, **head.state_dict()}.items()
            if not name.startswith("scorer.")
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@torch.no_grad()
def reference(folder: Path, texts: list[str], labels: list[str]) -> list[torch.Tensor]:
    """Return the logits of labels for each text."""
    content = json.loads((folder / "config.json").read_text())
    given = dict(content["encoder_config"])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    encoder, head = transformers.AutoModel.from_config(config), Head(config.hidden_size, content)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    start = "model.encoder_model."
    own = {name.removeprefix(start): each for name, each in tensors.items() if start in name}
    encoder.load_state_dict(own)
    rest = {name: each for name, each in tensors.items() if start not in name}
    missing = head.load_state_dict(rest, strict=False).missing_keys
    assert all(name.startswith("scorer.") for name in missing)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = "".join(f"<<LABEL>>{label}" for label in labels) + "<<SEP>>"
    found = []
    for text in texts:
        joined = f"{prompt}{text}" if content["prompt_first"] else f"{text}{prompt}"
        inputs = tokenizer(joined, return_tensors="pt")
        states = encoder.eval()(**inputs).last_hidden_state[0]
        found.append(head.eval()(states, inputs["input_ids"][0]))
    return found
