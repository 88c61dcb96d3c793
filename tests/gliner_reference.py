"""Entities as gliner finds them: its definitions, written out in torch for one text at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from gliner_models import head_of


class Reference:
    """A checkpoint of `gliner_models.save_gliner`, in float64."""

    def __init__(self, folder: Path) -> None:
        self.settings = json.loads((folder / "gliner_config.json").read_text())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tensors = torch.load(folder / "pytorch_model.bin")
        self.encoder = encoder_of(self.settings["encoder_config"], tensors, "bert_layer")
        self.has_labels_encoder = bool(self.settings["labels_encoder"])
        if self.has_labels_encoder:
            given = self.settings["labels_encoder_config"]
            self.labels_encoder = encoder_of(given, tensors, "labels_encoder")
            folder = folder / "labels_tokenizer"
            self.labels_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.head = head_of(
            self.settings["span_mode"],
            width=self.settings["hidden_size"],
            layers=self.settings["num_rnn_layers"],
        )
        rest = {name: each for name, each in tensors.items() if "token_rep_layer" not in name}
        # gliner does not run it next to a second encoder.
        self.has_rnn = self.settings["num_rnn_layers"] and not self.has_labels_encoder
        self.head.load_state_dict(rest)
        self.head.double().eval()
        self.projection = projection_of(tensors, "token_rep_layer.projection")
        self.labels_projection = projection_of(tensors, "token_rep_layer.labels_projection")

    @torch.no_grad()
    def find(
        self,
        text: str,
        labels: Sequence[str],
        *,
        threshold: float = 0.5,
        flat: bool = True,
        multi_label: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the entities of a text."""
        matches = list(re.finditer(r"\w+(?:[-_]\w+)*|\S", text))
        if not matches:
            return []
        words, prompts = self._vectors([each.group() for each in matches], labels)
        spans = self._spans(words, prompts, threshold)
        kept: list[tuple[int, int, int, float]] = []
        for each in sorted(spans, key=lambda span: -span[3]):
            if not any(clash(each, other, flat, multi_label) for other in kept):
                kept.append(each)
        return [
            {
                "start": matches[first].start(),
                "end": matches[last].end(),
                "text": text[matches[first].start() : matches[last].end()],
                "label": labels[label],
                "score": score,
            }
            for first, last, label, score in sorted(kept, key=lambda span: span[0])
        ]

    def _vectors(
        self, words: Sequence[str], labels: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        marked = [part for label in labels for part in ("<<ENT>>", label)] + ["<<SEP>>"]
        prompt = [] if self.has_labels_encoder else marked
        encoded = self.tokenizer([*prompt, *words], is_split_into_words=True, return_tensors="pt")
        states = self.projection(self.encoder(**encoded).last_hidden_state[0])
        ids, owners = encoded["input_ids"][0], encoded.word_ids(0)
        marks = (ids == self.tokenizer.convert_tokens_to_ids("<<ENT>>")).nonzero()[:, 0]
        prompts = states[marks + (not self.settings["embed_ent_token"])]
        found = []
        for index in range(len(words)):
            own = states[
                [place for place, each in enumerate(owners) if each == len(prompt) + index]
            ]
            pooling = self.settings["subtoken_pooling"]
            pooled = {"first": own[0], "last": own[-1], "mean": own.mean(0), "max": own.amax(0)}
            found.append(pooled[pooling])
        vectors = torch.stack(found)
        if self.has_labels_encoder:
            prompts = torch.stack([self._label(label) for label in labels])
        if self.has_rnn:
            vectors = self.head.rnn.lstm(vectors[None])[0][0]
        return vectors, prompts

    def _label(self, label: str) -> torch.Tensor:
        """Return the vector of a label, which the second encoder reads alone."""
        states = self.labels_encoder(**self.labels_tokenizer(label, return_tensors="pt"))[0]
        return self.labels_projection(states[0].mean(0))

    def _spans(
        self, words: torch.Tensor, prompts: torch.Tensor, threshold: float
    ) -> list[tuple[int, int, int, float]]:
        if self.settings["span_mode"] == "token_level":
            return self._of_words(words, prompts, threshold)
        layer, found = self.head.span_rep_layer.span_rep_layer, []
        labels = self.head.prompt_rep_layer(prompts)
        for first in range(len(words)):
            for last in range(first, min(first + self.settings["max_width"], len(words))):
                parts = [layer.project_start(words[first]), layer.project_end(words[last])]
                if self.settings["span_mode"] == "markerV1":
                    parts.append(words.mean(0))
                chances = (layer.out_project(torch.cat(parts).relu()) @ labels.T).sigmoid()
                found += [
                    (first, last, label, chance)
                    for label, chance in enumerate(chances.tolist())
                    if chance > threshold
                ]
        return found

    def _of_words(
        self, words: torch.Tensor, prompts: torch.Tensor, threshold: float
    ) -> list[tuple[int, int, int, float]]:
        scorer, found, width = self.head.scorer, [], words.shape[1]
        for label, prompt in enumerate(prompts):
            own, other = scorer.proj_token(words), scorer.proj_label(prompt).expand(len(words), -1)
            joined = [own[:, :width], other[:, :width], own[:, width:] * other[:, width:]]
            starts, ends, inside = scorer.out_mlp(torch.cat(joined, -1)).sigmoid().T.tolist()
            for first in range(len(words)):
                for last in range(first, len(words)):
                    if starts[first] <= threshold or ends[last] <= threshold:
                        continue
                    if min(inside[first : last + 1]) >= threshold:
                        chance = min(*inside[first : last + 1], starts[first], ends[last])
                        found.append((first, last, label, chance))
        return found


def clash(one: Any, other: Any, flat: bool, multi_label: bool) -> bool:
    """Return whether two spans exclude each other."""
    if one[:2] == other[:2]:
        return not multi_label
    words, others = set(range(one[0], one[1] + 1)), set(range(other[0], other[1] + 1))
    return bool(words & others) and (flat or not (words <= others or others <= words))


def encoder_of(settings: Mapping[str, Any], tensors: Mapping[str, Any], part: str) -> Any:
    """Return an encoder of transformers, in float64."""
    given = dict(settings)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    encoder = transformers.AutoModel.from_config(config).double().eval()
    body = f"token_rep_layer.{part}.model."
    encoder.load_state_dict(
        {name.removeprefix(body): each for name, each in tensors.items() if body in name}
    )
    return encoder


def projection_of(tensors: Mapping[str, Any], name: str) -> nn.Module:
    """Return a layer, in float64, that changes nothing if there is none."""
    if f"{name}.weight" not in tensors:
        return nn.Identity()
    weight = tensors[f"{name}.weight"]
    found = nn.Linear(*weight.shape[::-1]).double()
    found.weight.data, found.bias.data = weight.double(), tensors[f"{name}.bias"].double()
    return found


def same(found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether entities are equal, and their scores within 1e-4."""
    names = ("start", "end", "text", "label")
    return len(found) == len(wanted) and all(
        [own[name] for name in names] == [other[name] for name in names]
        and abs(own["score"] - other["score"]) < 1e-4
        for own, other in zip(found, wanted, strict=True)
    )
