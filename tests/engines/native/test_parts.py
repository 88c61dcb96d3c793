"""Models in float that run a few layers at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import qdqbert.engines.native.parts
from native_models import LIMIT, VOCABULARY, Shape, random_model
from qdqbert.encoders.model import Head, HeadOutput
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.parts import run_in_parts
from qdqbert.engines.native.runner import NativeRunner

HEADS = (
    Head(poolings=("none",), steps=(), outputs=(HeadOutput(name="last_hidden_state"),)),
    Head(poolings=("mean", "last"), steps=("tanh",), outputs=(HeadOutput(name="pooled"),)),
)
MODERN: dict[str, Any] = {
    "norms_first": True,
    "gated": True,
    "rotary": True,
    "has_positions": False,
}
SHAPES = {
    "bert": Shape(),
    "roberta": Shape(padding_id=1, has_types=False),
    "esm": Shape(dropped_id=3, has_types=False),
    "windows": Shape(**MODERN, window=4, has_types=False),
    "decoder": Shape(**MODERN, causal=True, has_types=False),
    "norms of heads and parts": Shape(
        **MODERN, normalizes_heads=True, norms_each_head=True, norms_parts=True
    ),
    "convolution": Shape(hidden=40, heads=5, head=8, convolution=3),
    "position bias": Shape(position_bias=True),
    "added twice": Shape(adds_twice=True),
}


def texts_of(model: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    texts = []
    for length in (1, 5, LIMIT):
        ids = rng.integers(0, VOCABULARY, (1, length))
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        if "token_type_ids" in model.input_names:
            inputs["token_type_ids"] = rng.integers(0, 2, ids.shape)
        texts.append(inputs)
    return texts


def compare(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A layer at a time.
    monkeypatch.setattr(qdqbert.engines.native.parts, "_TOGETHER", 1)
    whole = NativeRunner(pack_model(model, precision="float"), threads=2)
    texts = texts_of(model)
    found = list(run_in_parts(model, texts, threads=2))
    for text, outputs in zip(texts, found, strict=True):
        expected = whole.run(text)
        assert outputs.keys() == expected.keys()
        for name, output in outputs.items():
            np.testing.assert_array_equal(output, expected[name])


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.usual("roberta", "windows", "norms*", "convolution")
def test_outputs_have_the_bits_of_the_whole_model(kind: str, monkeypatch) -> None:
    shape = dataclasses.replace(SHAPES[kind], floats=True, layers=3, words_are_int8=False)
    compare(random_model(shape, HEADS), monkeypatch)


def test_texts_that_are_filled(monkeypatch) -> None:
    model = random_model(Shape(floats=True, words_are_int8=False, has_types=False), HEADS)
    compare(dataclasses.replace(model, filled_id=7), monkeypatch)


def test_choices(monkeypatch) -> None:
    model = random_model(Shape(floats=True, words_are_int8=False), HEADS[1:])
    monkeypatch.setattr(qdqbert.engines.native.parts, "_TOGETHER", 1)
    texts = [{name: each[None] for name, each in text.items()} for text in texts_of(model)]
    model = dataclasses.replace(model, has_choices=True)
    whole = NativeRunner(pack_model(model, precision="float"), threads=1)
    for text, found in zip(texts, run_in_parts(model, texts, threads=1), strict=True):
        np.testing.assert_array_equal(found["pooled"], whole.run(text)["pooled"])
