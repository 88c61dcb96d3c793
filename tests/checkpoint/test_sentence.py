from __future__ import annotations

import json
from typing import Any

import pytest

from qdqbert.checkpoint.sentence import read_sentence_head
from qdqbert.errors import CheckpointError

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")


def head_of(modules: list[dict[str, str]], pooling: dict[str, Any], **files: str) -> Any:
    texts = {
        "modules.json": json.dumps(modules),
        "1_Pooling/config.json": json.dumps(pooling),
        **{name.replace("__", "/") + ".json": text for name, text in files.items()},
    }
    return read_sentence_head(texts.get)


def flags(*on: str) -> dict[str, bool]:
    return {f"pooling_mode_{flag}": flag in on for flag in FLAGS}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (flags("cls_token"), "cls"),
        (flags("mean_tokens"), "mean"),
        (flags("max_tokens"), "max"),
        (flags("mean_sqrt_len_tokens"), "mean_sqrt_len_tokens"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({**flags("mean_tokens"), "pooling_mode": "cls"}, "cls"),
    ],
    ids=[
        *(f"flag-{flag}" for flag in FLAGS),
        *("name-cls", "name-mean", "list-max", "name-mean_sqrt_len_tokens", "name-wins"),
    ],
)
def test_the_pooling_is_read_in_the_old_format_and_the_new(config, expected) -> None:
    assert head_of([TRANSFORMER, POOLING], config).pooling == expected


@pytest.mark.parametrize(
    "config",
    [
        {},
        flags(),
        flags("cls_token", "mean_tokens"),
        {"pooling_mode": "lasttoken"},
        {"pooling_mode": ["cls", "mean"]},
        {"pooling_mode_weightedmean_tokens": True},
    ],
    ids=["none", "all-off", "two-flags", "last-token", "two-names", "weighted-mean"],
)
def test_another_pooling_is_refused(config) -> None:
    with pytest.raises(CheckpointError, match=r"is not supported; expected one of cls, mean, max"):
        head_of([TRANSFORMER, POOLING], config)


@pytest.mark.parametrize(
    "modules",
    [
        [TRANSFORMER, POOLING, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}],
        [TRANSFORMER],
        [POOLING],
    ],
    ids=["dense", "no-pooling", "no-transformer"],
)
def test_other_modules_are_refused(modules) -> None:
    with pytest.raises(CheckpointError, match="only Transformer, Pooling and, if wanted"):
        head_of(modules, flags("mean_tokens"))


def test_a_plain_folder_has_no_head() -> None:
    assert read_sentence_head(lambda path: None) is None


@pytest.mark.parametrize(
    ("modules", "expected"),
    [([TRANSFORMER, POOLING], False), ([TRANSFORMER, POOLING, NORMALIZE], True)],
    ids=["as-pooled", "normalized"],
)
def test_normalization_is_read(modules, expected) -> None:
    assert head_of(modules, flags("mean_tokens")).normalize is expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"sentence_bert_config": '{"max_seq_length": 256}'}, 256),
        ({"sentence_bert_config": '{"max_seq_length": null}'}, None),
    ],
    ids=["no-file", "number", "null"],
)
def test_the_length_it_was_meant_for_is_read(files, expected) -> None:
    assert head_of([TRANSFORMER, POOLING], flags("mean_tokens"), **files).max_length == expected


def test_an_encoder_in_a_subfolder_is_found_with_its_settings() -> None:
    transformer = {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    head = head_of(
        [transformer, POOLING],
        flags("mean_tokens"),
        **{"0_Transformer__sentence_bert_config": '{"max_seq_length": 17}'},
    )
    assert (head.subfolder, head.max_length) == ("0_Transformer", 17)
