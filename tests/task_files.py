"""Heads of checkpoints and random data for each task."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

WORDS = ("the", "cat", "dog", "on", "a", "river", "in", "rain", "home", "night", "music", "was")
TAGS = ("O", "B-PER", "I-PER")
SENTIMENT = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
# The default stride of 128 is longer than the inputs of these models.
DOC_STRIDE = 16


def settings_of(name: str) -> dict[str, int]:
    """Return what calls for a task pass, given its name or transformers' auto class."""
    is_reader = name in ("question-answering", "AutoModelForQuestionAnswering")
    return {"doc_stride": DOC_STRIDE} if is_reader else {}


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))


def plain(rng: random.Random, count: int) -> str:
    return "\n".join(sentence(rng) for _ in range(count))


def labeled(rng: random.Random, count: int) -> str:
    rows = [f"{sentence(rng)}\t{('bad', 'good')[index % 2]}" for index in range(count)]
    return "\n".join(["text\tlabel", *rows])


def pairs(rng: random.Random, count: int) -> str:
    rows = [f"{sentence(rng)}\t{sentence(rng)}\t{index % 2}" for index in range(count)]
    return "\n".join(["sentence1\tsentence2\tlabel", *rows])


def choices(rng: random.Random, count: int) -> str:
    rows = [
        {"context": sentence(rng), "endings": [sentence(rng) for _ in range(3)], "label": index % 3}
        for index in range(count)
    ]
    return "\n".join(map(json.dumps, rows))


def questions(rng: random.Random, count: int) -> str:
    rows = []
    for index in range(count):
        words = sentence(rng).split()
        first = rng.randrange(len(words))
        answer, start = " ".join(words[first : first + 2]), len(" ".join([*words[:first], ""]))
        row = {"id": str(index), "question": sentence(rng), "context": " ".join(words)}
        rows.append({**row, "answers": {"text": [answer], "answer_start": [start]}})
    return "\n".join(map(json.dumps, rows))


def tagged(rng: random.Random, count: int) -> str:
    sentences = [sentence(rng).split() for _ in range(count)]
    return "\n\n".join("\n".join(f"{word} {rng.choice(TAGS)}" for word in s) for s in sentences)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """Class of a task's checkpoints, and how to write its data."""

    auto_class: str
    file: str
    write: Callable[[random.Random, int], str]
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


HEADS = {
    "feature-extraction": Head(auto_class="AutoModel", file="pairs.tsv", write=pairs),
    "text-classification": Head(
        auto_class="AutoModelForSequenceClassification",
        file="texts.tsv",
        write=labeled,
        changes=SENTIMENT,
    ),
    "token-classification": Head(
        auto_class="AutoModelForTokenClassification",
        file="tags.conll",
        write=tagged,
        changes={"id2label": dict(enumerate(TAGS))},
    ),
    "question-answering": Head(
        auto_class="AutoModelForQuestionAnswering", file="squad.jsonl", write=questions
    ),
    "fill-mask": Head(auto_class="AutoModelForMaskedLM", file="texts.txt", write=plain),
    "multiple-choice": Head(
        auto_class="AutoModelForMultipleChoice", file="swag.jsonl", write=choices
    ),
    "next-sentence-prediction": Head(
        auto_class="AutoModelForNextSentencePrediction", file="pairs.tsv", write=pairs
    ),
    "text-generation": Head(
        auto_class="AutoModelForCausalLM",
        file="texts.txt",
        write=plain,
        changes={"is_decoder": True},
    ),
}
