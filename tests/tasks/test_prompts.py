"""Texts to calibrate on are read as they are embedded: with each prompt, and as queries."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import TEXTS
from qdqbert.common.progress import Silent
from qdqbert.data.rows.data import Example
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.tasks.prompts import prompts_of
from qdqbert.tasks.task import Tokenization


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({}, None, [""]),
        ({"query": "q: ", "passage": "p: "}, None, ["", "q: ", "p: "]),
        ({"query": "q: ", "document": "d: "}, "query", ["q: ", "d: "]),
        ({"query": "q: "}, "query", ["q: ", ""]),
        ({"sts": "s: ", "same": "s: ", "none": ""}, None, ["", "s: "]),
    ],
)
def test_prompts_are_those_that_texts_can_have(prompts, default, expected) -> None:
    settings = ModelSettings(prompts=prompts, default_prompt_name=default)
    assert prompts_of(settings) == expected


def features_of(folder, texts, scratch, pairs=None):
    source = open_source(ModelPath(path=str(folder), shown="model"), scratch, Silent())
    seconds = pairs or [None] * len(texts)
    return source.task.encode_calibration(
        source.head,
        [Example(text=a, text_pair=b) for a, b in zip(texts, seconds, strict=True)],
        Tokenization(
            tokenizer=runtime_tokenizer(source.tokenizer),
            input_names=source.input_names,
            max_length=source.max_length,
            settings=TaskSettings(),
        ),
    )


def test_embedders_read_texts_with_each_prompt_in_turn(checkpoints, tmp_path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = checkpoints("sparse")
    theirs = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    assert theirs.prompts == {"query": "the ", "document": "a "}
    # A text with a prompt of its own gets no other one.
    texts = [*TEXTS[:4], "the dog", "a dog"]
    features = features_of(folder, texts, tmp_path)
    read = ["", "a ", "the ", "", "", ""]
    for text, prompt, feature in zip(texts, read, features.encoded.inputs, strict=True):
        expected = theirs.preprocess([prompt + text])["input_ids"][0]
        np.testing.assert_array_equal(feature["input_ids"], expected)
    assert not features.notices


def test_second_texts_take_turns_after_the_first_ones(checkpoints, tmp_path) -> None:
    folder = checkpoints("sparse")
    both = features_of(folder, TEXTS[:3], tmp_path, pairs=TEXTS[3:6]).encoded.inputs
    alone = features_of(folder, TEXTS[:6], tmp_path).encoded.inputs
    for one, other in zip(both, alone, strict=True):
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_multi_vector_embedders_read_texts_as_documents_and_as_queries(
    checkpoints, tmp_path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = checkpoints("multi_vector")
    theirs = sentence_transformers.MultiVectorEncoder(str(folder), device="cpu")
    texts = [*TEXTS[:4], TEXTS[4] * 20, TEXTS[5] * 20]
    features = features_of(folder, texts, tmp_path)
    for index, (text, feature) in enumerate(zip(texts, features.encoded.inputs, strict=True)):
        kind = ("document", "query")[index % 2]
        expected = theirs.preprocess([text], prompt=theirs.prompts[kind], task=kind)
        for name in ("input_ids", "attention_mask"):
            np.testing.assert_array_equal(feature[name], expected[name][0])
    # Both kinds have a limit of their own, which is below the model's.
    assert not features.notices
