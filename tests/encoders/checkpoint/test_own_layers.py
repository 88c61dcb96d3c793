"""Settings of gliner, gliner2 and gliclass mean the same, however a number is written."""

from __future__ import annotations

import dataclasses
import json

import pytest

from qdqbert.encoders.checkpoint.gliclass import encoder_values, label_head
from qdqbert.encoders.checkpoint.gliner import read_gliner_head
from qdqbert.encoders.checkpoint.gliner2 import read_gliner2_head

ENCODER = {"model_type": "bert"}
GLINER = {
    "span_mode": "markerV0",
    "encoder_config": ENCODER,
    "max_width": 8,
    "max_len": 24,
    "num_rnn_layers": 2,
    "class_token_index": 31,
    "vocab_size": 33,
}
GLINER2 = {
    "model_type": "extractor",
    "encoder_config": ENCODER,
    "span_head": {"max_width": 6},
    "vocab_size": 33,
}
GLICLASS = {
    "model_type": "GLiClass",
    "encoder_config": ENCODER,
    "encoder_layer_id": -1,
    "scorer_num_heads": 2,
    "class_token_index": 31,
    "text_token_index": -1,
    "vocab_size": 33,
}


def spans(read, file):
    def settings(content):
        head = read(lambda path: json.dumps(content) if path == file else None)
        return dataclasses.replace(head, files={}), head.encoder_values()

    return settings


def classes(content):
    return label_head(content), {**encoder_values(content), "GLiClass": None}


def with_decimals(value):
    if isinstance(value, dict):
        return {name: with_decimals(each) for name, each in value.items()}
    return float(value) if isinstance(value, int) else value


@pytest.mark.parametrize(
    ("settings", "content"),
    [
        (spans(read_gliner_head, "gliner_config.json"), GLINER),
        (spans(read_gliner2_head, "config.json"), GLINER2),
        (classes, GLICLASS),
    ],
    ids=["gliner", "gliner2", "gliclass"],
)
def test_whole_numbers_may_have_decimals(settings, content) -> None:
    # 33.0 equals 33, and is written otherwise.
    assert repr(settings(with_decimals(content))) == repr(settings(content))
