"""Checkpoints as gliner2 saves them, with random weights, and its definitions in torch.

They are made without the package. `Reference` computes what `GLiNER2` of gliner2 2.1 finds in a
text, for models of architecture "span".
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from torch import nn

from conftest import (
    BERT_SPECIAL,
    ROBERTA_SPECIAL,
    WITH_SEGMENTS,
    make_config,
    make_tokenizer,
    spread,
)
from gliner_models import two_layers

MARKS = (
    *("[SEP_STRUCT]", "[SEP_TEXT]", "[P]", "[C]", "[E]", "[R]", "[L]"),
    *("[EXAMPLE]", "[OUTPUT]", "[DESCRIPTION]"),
)
MAX_WIDTH, POSITIONS = 4, 256
SMALL, COUNTS, EXPERTS = 128, 20, 4


def stack(*sizes: int) -> nn.Sequential:
    """Return linear layers with a ReLU between them."""
    found: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        found += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*found[:-1])


class Count(nn.Module):
    """The vectors of labels, `(answers, labels, size)`."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.pos_embedding = nn.Embedding(COUNTS, size)
        self.gru = nn.GRU(size, size)
        if kind == "count_lstm":
            self.projector = stack(2 * size, 4 * size, size)
        elif kind == "count_lstm_v2":
            self.transformer = nn.Module()
            self.transformer.in_projector = nn.Linear(size, SMALL)
            layer = nn.TransformerEncoderLayer(SMALL, 4, 2 * SMALL, 0.0, batch_first=True)
            self.transformer.transformer = nn.TransformerEncoder(
                layer, 2, enable_nested_tensor=False
            )
            self.transformer.out_projector = stack(SMALL + size, size, size, size)
        else:
            self.w1 = nn.Parameter(torch.randn(EXPERTS, size, 2 * size) / size**0.5)
            self.w2 = nn.Parameter(torch.randn(EXPERTS, 2 * size, size) / size**0.5)
            self.b1 = nn.Parameter(torch.randn(EXPERTS, 2 * size))
            self.b2 = nn.Parameter(torch.randn(EXPERTS, size))
            self.router = nn.Sequential(
                nn.Linear(size, size), nn.GELU(), nn.Linear(size, EXPERTS), nn.Softmax(dim=-1)
            )

    def forward(self, labels: torch.Tensor, count: int) -> torch.Tensor:
        places = self.pos_embedding.weight[:count, None].expand(-1, len(labels), -1)
        found = self.gru(places.contiguous(), labels[None].contiguous())[0]
        if self.kind == "count_lstm":
            return self.projector(torch.cat([found, labels.expand_as(found)], dim=-1))
        if self.kind == "count_lstm_v2":
            given, inner = found + labels, self.transformer
            seen = inner.transformer(inner.in_projector(given))
            return inner.out_projector(torch.cat([seen, given], dim=-1))
        each = [
            nn.functional.gelu(found @ self.w1[index] + self.b1[index]) @ self.w2[index]
            + self.b2[index]
            for index in range(EXPERTS)
        ]
        return (self.router(found)[..., None] * torch.stack(each, dim=-2)).sum(dim=-2)


def head_of(size: int, kind: str) -> nn.Module:
    """Return the modules after the encoder, under gliner2's names."""
    head, spans = nn.Module(), nn.Module()
    spans.project_start, spans.project_end = two_layers(size), two_layers(size)
    spans.out_project = two_layers(2 * size, size)
    head.span_rep = nn.Module()
    head.span_rep.span_rep_layer = spans
    head.classifier = stack(size, 2 * size, 1)
    head.count_pred = stack(size, 2 * size, COUNTS)
    head.count_embed = Count(size, kind)
    return head


def save_gliner2(
    folder: Path,
    family: str = "deberta-v2",
    *,
    counting_layer: str = "count_lstm",
    seed: int = 0,
    none: float = -1.0,
    tokenizer: Any = None,
    **settings: Any,
) -> Path:
    """Save a checkpoint.

    Args:
        folder: The folder.
        family: Family of the encoder.
        counting_layer: See the settings of gliner2.
        seed: Of the weights.
        none: Logit of the number 0 of answers: with a large one, no text has entities.
        tokenizer: The tokenizer; one for words by default.
        settings: Other settings of config.json.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = tokenizer or make_tokenizer(
        BERT_SPECIAL if family in WITH_SEGMENTS else ROBERTA_SPECIAL
    )
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    tokenizer.save_pretrained(folder)
    config = make_config(family, vocab_size=len(tokenizer), max_position_embeddings=POSITIONS)
    torch.manual_seed(seed)
    encoder = spread(transformers.AutoModel.from_config(config))
    head = head_of(config.hidden_size, counting_layer)
    with torch.no_grad():
        # So that probabilities are not all 0.5.
        last = head.span_rep.span_rep_layer.out_project[-1]
        last.weight *= 12
        last.bias *= 12
        head.classifier[-1].weight *= 4
        head.count_pred[-1].bias[0] = none
    tensors = {f"encoder.{name}": each for name, each in encoder.state_dict().items()}
    tensors |= head.state_dict()
    safetensors.torch.save_file(
        {name: each.contiguous().clone() for name, each in tensors.items()},
        folder / "model.safetensors",
    )
    (folder / "encoder_config").mkdir(exist_ok=True)
    (folder / "encoder_config" / "config.json").write_text(json.dumps(config.to_dict()))
    content = {
        "model_type": "extractor",
        "architectures": ["Extractor"],
        "model_name": "a/model",
        "max_width": MAX_WIDTH,
        "counting_layer": counting_layer,
        "token_pooling": "first",
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(content))
    return folder


class Reference:
    """A checkpoint of `save_gliner2`."""

    def __init__(self, folder: Path) -> None:
        self.settings = json.loads((folder / "config.json").read_text())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        given = json.loads((folder / "encoder_config" / "config.json").read_text())
        config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        self.encoder = transformers.AutoModel.from_config(config).eval()
        own = {x.removeprefix("encoder."): y for x, y in tensors.items() if x[:8] == "encoder."}
        self.encoder.load_state_dict(own)
        self.head = head_of(config.hidden_size, self.settings["counting_layer"]).eval()
        rest = {name: each for name, each in tensors.items() if not name.startswith("encoder.")}
        self.head.load_state_dict(rest)

    @torch.no_grad()
    def spans(
        self, text: str, labels: Sequence[str] | Mapping[str, str]
    ) -> list[tuple[int, int, str, float]]:
        """Return the start, the end, the label and the probability of each span of a text."""
        schema = words_of("entities", labels, "[E]")
        (marks,), states, places = self.states(text, [schema])
        task, *own = marks
        if int(self.head.count_pred(task).argmax()) == 0:
            return []
        (queries,) = self.head.count_embed(torch.stack(own), 1)
        found = self.scored(states, places, dict(zip(labels, queries, strict=True)))
        # The full stop that is read after a text is no part of it.
        return [each for each in found if each[1] <= len(text)]

    @torch.no_grad()
    def instances(
        self, text: str, name: str, fields: Sequence[str], choices: Sequence[str]
    ) -> list[tuple[list[tuple[int, int, str, float]], dict[str, list[float]]]]:
        """Return for each instance of a structure the spans, and the scores of words before them.

        Spans are as in `spans`, of fields. The words are `choices`; their scores are by field.
        """
        schema = words_of(name, fields, "[C]")
        (marks,), states, places = self.states(text, [schema], choices)
        task, *own = marks
        count = int(self.head.count_pred(task).argmax())
        found = []
        for queries in self.head.count_embed(torch.stack(own), count) if count else ():
            by_field = dict(zip(fields, queries, strict=True))
            spans = self.scored(states[len(choices) :], places[len(choices) :], by_field)
            first = [[self.scored([each], [(0, 0)], by_field)] for each in states[: len(choices)]]
            scores = {
                field: [each[0][number][3] for each in first] for number, field in enumerate(fields)
            }
            found.append(([each for each in spans if each[1] <= len(text)], scores))
        return found

    def scored(
        self,
        states: Sequence[torch.Tensor],
        places: Sequence[tuple[int, int]],
        queries: Mapping[str, torch.Tensor],
    ) -> list[tuple[int, int, str, float]]:
        """Return the place of each span with its probability for each vector, by their names."""
        layer, found = self.head.span_rep.span_rep_layer, []
        for first in range(len(states)):
            for last in range(first, min(first + MAX_WIDTH, len(states))):
                parts = [layer.project_start(states[first]), layer.project_end(states[last])]
                vector = layer.out_project(torch.cat(parts).relu())
                for name, query in queries.items():
                    chance = float(torch.sigmoid(vector @ query))
                    found.append((places[first][0], places[last][1], name, chance))
        return found

    @torch.no_grad()
    def logits(self, text: str, tasks: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the logits of the labels of each task, by their names."""
        schemas = [words_of(name, labels, "[L]") for name, labels in tasks.items()]
        marks, _, _ = self.states(text, schemas)
        return [self.head.classifier(torch.stack(each[1:]))[:, 0] for each in marks]

    def states(
        self, text: str, schemas: Sequence[Sequence[str]], choices: Sequence[str] = ()
    ) -> tuple[list[list[torch.Tensor]], list[torch.Tensor], list[tuple[int, int]]]:
        """Return the states of the marks of each schema, those of words, and their places.

        `choices` are words before those of the text, which have no place.
        """
        whole = text if text.endswith((".", "!", "?")) else f"{text}."
        matches = list(re.finditer(r"\w+(?:[-_]\w+)*|\S", whole))
        tokens: list[str] = []
        marks: list[list[int]] = []
        for schema in schemas:
            tokens += ["[SEP_STRUCT]"] if tokens else []
            marks.append([])
            for index, word in enumerate(schema):
                if index == 1 or (index in range(4, len(schema) - 2, 2)):
                    marks[-1].append(len(tokens))
                tokens += self.tokenizer.tokenize(word)
        tokens.append("[SEP_TEXT]")
        starts = []
        for each in (*choices, *(match.group().lower() for match in matches)):
            own = self.tokenizer.tokenize(each)
            starts.append((len(tokens), len(tokens) + len(own)))
            tokens += own
        ids = torch.tensor([self.tokenizer.convert_tokens_to_ids(tokens)])
        states = self.encoder(input_ids=ids).last_hidden_state[0]
        pooling = {
            "first": lambda x: x[0],
            "mean": lambda x: x.mean(dim=0),
            "max": lambda x: x.amax(dim=0),
        }[self.settings["token_pooling"]]
        words = [pooling(states[start:end]) for start, end in starts]
        return (
            [[states[place] for place in each] for each in marks],
            words,
            [*[(0, 0)] * len(choices), *(each.span() for each in matches)],
        )


def words_of(name: str, labels: Sequence[str] | Mapping[str, str | None], mark: str) -> list[str]:
    """Return the words of a schema, of labels or their descriptions, `None` for none."""
    said = labels.items() if isinstance(labels, Mapping) else ()
    known = [f" [DESCRIPTION] {label}: {text}" for label, text in said if text is not None]
    inner = [word for label in labels for word in (mark, label)]
    return ["(", "[P]", "".join([name, *known]), "(", *inner, ")", ")"]


def chosen(spans: Sequence[tuple[int, int, str, float]], threshold: float) -> list[Any]:
    """Return the spans of each label that are above a threshold and share no word."""
    kept: list[tuple[int, int, str, float]] = []
    for each in sorted(spans, key=lambda span: -span[3]):
        near = [x for x in kept if x[2] == each[2] and x[0] < each[1] and each[0] < x[1]]
        if each[3] >= threshold and not near:
            kept.append(each)
    return sorted(kept)
